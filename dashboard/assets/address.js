/* The address and the page say the same: links, back and forward show a page, changes on a page
   are written into the address. */
(function () {
  "use strict";
  const QUIET = 800; // changes closer together share one entry of the history [ms]
  let last = 0;

  function scheme() { // what Mantine shows, or will show
    const shown = document.documentElement.getAttribute("data-mantine-color-scheme");
    if (shown === "light" || shown === "dark") return shown;
    const chosen = window.localStorage.getItem("mantine-color-scheme-value");
    if (chosen === "light" || chosen === "dark") return chosen;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  new MutationObserver(function () {
    if (window.dash_clientside.set_props && document.getElementById("content")) {
      window.dash_clientside.set_props("scheme", { data: scheme() });
    }
  }).observe(document.documentElement, { attributeFilter: ["data-mantine-color-scheme"] });

  function route() {
    return {
      path: window.location.pathname,
      query: window.location.search,
      theme: scheme(),
    };
  }

  function show() {
    last = 0;
    mark();
    window.dash_clientside.set_props("route", { data: route() });
  }

  function mark() {
    document.querySelectorAll("[data-page]").forEach(function (link) {
      const here = link.getAttribute("data-page") === window.location.pathname;
      link.classList.toggle("here", here);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
  }

  window.addEventListener("popstate", show);

  document.addEventListener("click", function (event) {
    const link = event.target.closest && event.target.closest("a[href^='/']");
    if (!link || link.target || link.hasAttribute("download")) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    window.history.pushState(null, "", link.getAttribute("href"));
    show();
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    address: {
      start: function (_, themes, known) {
        const quiet = window.dash_clientside.no_update, now = scheme();
        mark();
        return [themes.map((one) => (one === now ? quiet : now)), known ? quiet : route()];
      },
      write: function (query) {
        if (typeof query !== "string") return;
        if (query === window.location.search) {
          last = last || Date.now(); // the page's own state: what follows is the user's
          return;
        }
        const now = Date.now();
        const target = window.location.pathname + query;
        if (now - last < QUIET || last === 0) window.history.replaceState(null, "", target);
        else window.history.pushState(null, "", target);
        last = now;
      },
      copy: function (clicks) {
        if (!clicks) return window.dash_clientside.no_update;
        const done = function (text) {
          window.dash_clientside.set_props("address", { children: text });
          window.setTimeout(function () {
            window.dash_clientside.set_props("address", { children: "Copy link" });
          }, 1500);
        };
        navigator.clipboard.writeText(window.location.href).then(
          function () { done("Copied"); },
          function () { done("Copy the address above"); }
        );
        return window.dash_clientside.no_update;
      },
    },
  });
})();
