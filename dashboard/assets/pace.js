/* Looks at a job again a while after the last answer came, not before: a server that is slow is
   never asked faster than it answers, so that every answer is seen. */
(function () {
  "use strict";
  const PATIENCE = 30000; // then an answer is no longer waited for [ms]
  const timers = {};

  function ask(beat) {
    if (!document.getElementById(beat.place)) return; // the page is gone
    window.dash_clientside.set_props(beat.tick, { data: Date.now() });
    timers[beat.tick] = window.setTimeout(function () { ask(beat); }, PATIENCE);
  }

  function next(beat) {
    if (!beat) return;
    window.clearTimeout(timers[beat.tick]);
    if (beat.after) timers[beat.tick] = window.setTimeout(function () { ask(beat); }, beat.after);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { pace: { next: next } });
})();
