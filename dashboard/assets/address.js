/* The address and the page say the same: links, back and forward show a page, changes on a page
   are written into the address, and so is a theme that was chosen. */
(function () {
  "use strict";
  const QUIET = 800; // changes closer together share one entry of the history [ms]
  const KEPT = "mantine-color-scheme-value"; // where Mantine keeps a choice
  let last = 0, visit = 1;
  const usual = preferred(); // of an address that names no theme
  let chosen = named(); // by the reader or the address; null as long as the browser decides

  function preferred() {
    const kept = window.localStorage.getItem(KEPT);
    if (kept === "light" || kept === "dark") return kept;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  function named() { // by the address
    const theme = new URLSearchParams(window.location.search).get("theme");
    return theme === "light" || theme === "dark" ? theme : null;
  }

  function shown() { // by Mantine
    const now = document.documentElement.getAttribute("data-mantine-color-scheme");
    return now === "light" || now === "dark" ? now : preferred();
  }

  function scheme() { return chosen || shown(); }

  function force(theme) {
    window.dash_clientside.set_props("provider", { forceColorScheme: theme });
  }

  function tell() {
    if (window.dash_clientside.set_props && document.getElementById("content")) {
      window.dash_clientside.set_props("scheme", { data: [scheme(), chosen !== null] });
    }
  }

  new MutationObserver(tell).observe(document.documentElement, {
    attributeFilter: ["data-mantine-color-scheme"],
  });

  function toggle() {
    chosen = scheme() === "dark" ? "light" : "dark";
    window.localStorage.setItem(KEPT, chosen);
    force(chosen);
    tell();
  }

  function route() {
    return {
      path: window.location.pathname,
      query: window.location.search,
      visit: visit,
      theme: scheme(),
      chosen: chosen !== null,
    };
  }

  function show() {
    if (!window.dash_clientside.set_props) return; // the first page is still on its way
    last = 0;
    visit += 1;
    mark();
    const now = visit;
    window.lateScripts().then(function () {
      if (now === visit) window.dash_clientside.set_props("route", { data: route() });
    });
  }

  function mark() {
    document.querySelectorAll("[data-page]").forEach(function (link) {
      const here = link.getAttribute("data-page") === window.location.pathname;
      link.classList.toggle("here", here);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
  }

  window.addEventListener("popstate", function () {
    chosen = named();
    if (window.dash_clientside.set_props && shown() !== (chosen || usual)) force(chosen || usual);
    show();
  });

  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("#theme-toggle")) return toggle();
    const link = event.target.closest && event.target.closest("a[href^='/']");
    if (!link || link.target || link.hasAttribute("download")) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    window.history.pushState(null, "", link.getAttribute("href"));
    show();
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    address: {
      start: function (_, known) {
        mark();
        if (chosen && shown() !== chosen) force(chosen);
        return known ? window.dash_clientside.no_update : route();
      },
      /* The page's store of its visit says the theme that is on, whichever of them came last. */
      dress: function (_, content, visits) {
        const quiet = window.dash_clientside.no_update, theme = scheme(), own = chosen !== null;
        return visits.map(function (one) {
          const same = one && one.theme === theme && one.chosen === own;
          return !one || same ? quiet : { visit: one.visit, theme: theme, chosen: own };
        });
      },
      write: function (said) {
        if (!said || typeof said.query !== "string" || said.visit !== visit) return; // of a page before
        const query = said.query;
        if (query === window.location.search) {
          last = last || 1; // the page's own state: what follows is the user's, however soon
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
