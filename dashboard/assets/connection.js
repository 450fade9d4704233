/* What the server does not answer is told on the page: it stopped, or the request is too large. */
(function () {
  "use strict";
  const MOST = 72000000; // of one request, as dashboard/limits.py says [bytes]
  const ask = window.fetch.bind(window);
  let leaving = false, told = false;

  window.addEventListener("beforeunload", function () { leaving = true; });

  function tell(text) {
    told = true;
    window.dash_clientside.set_props("notice", {
      children: {
        namespace: "dash_html_components",
        type: "Div",
        props: { children: text, className: "banner", role: "alert" },
      },
    });
  }

  /* The page that waits for this answer hears that there will be none. */
  function missed(body, text) {
    tell(text);
    window.dispatchEvent(new CustomEvent("unanswered", { detail: String(body) }));
  }

  function refused(body, status, text) {
    missed(body, text);
    return new Response(JSON.stringify({ error: text }), { status: status });
  }

  function heard(response, body) {
    leaving = false;
    if (response.status >= 400) {
      const vague = "The server could not answer; reload the page.";
      response.clone().json().then(
        function (said) { missed(body, said.error || vague); },
        function () { missed(body, vague); }
      );
    } else if (told) { // it answers again
      told = false;
      window.dash_clientside.set_props("notice", { children: null });
    }
    return response;
  }

  window.fetch = function (resource, options) {
    const url = typeof resource === "string" ? resource : resource.url;
    if (!url || !url.includes("_dash-update-component")) return ask(resource, options);
    const body = options && options.body;
    if (typeof body === "string" && body.length > MOST) {
      return Promise.resolve(
        refused(body, 413, "This is too large to be sent: at most 50 MB of a file are read.")
      );
    }
    return ask(resource, options).then(
      function (response) { return heard(response, body); },
      function (error) {
        if (leaving) return new Promise(function () {}); // another page is on its way
        missed(body,
          "The server does not answer. Is `bubblescope dashboard` still running? Then reload.");
        throw error;
      }
    );
  };
})();
