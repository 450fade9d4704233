/* Runs the scripts that this page does not need once it stands; another page waits for them. */
(function () {
  "use strict";
  const WAIT = 4000; // then they run, whatever goes on [ms]
  let done = null;

  function run(mark) {
    return new Promise(function (resolve) {
      const script = document.createElement("script");
      script.src = mark.dataset.src;
      script.onload = script.onerror = resolve;
      document.head.appendChild(script);
    });
  }

  /* Resolves once all have run; runs them now if they have not. */
  window.lateScripts = function () {
    const marks = Array.from(document.querySelectorAll('script[type="text/late"]'));
    done = done || Promise.all(marks.map(run));
    return done;
  };

  window.addEventListener("load", function () {
    const later = window.requestIdleCallback || window.setTimeout;
    window.setTimeout(function () { later(window.lateScripts, { timeout: WAIT }); }, WAIT);
  });
})();
