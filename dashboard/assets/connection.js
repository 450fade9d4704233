/* What the server does not answer is told on the page: it stopped, or the request is too large. */
(function () {
  "use strict";
  const MOST = 72000000; // of one request, as dashboard/limits.py says [bytes]
  const ask = window.fetch.bind(window);

  function tell(text) {
    window.dash_clientside.set_props("notice", {
      children: {
        namespace: "dash_html_components",
        type: "Div",
        props: { children: text, className: "banner", role: "alert" },
      },
    });
  }

  function refused(status, text) {
    tell(text);
    return new Response(JSON.stringify({ error: text }), { status: status });
  }

  window.fetch = function (resource, options) {
    const url = typeof resource === "string" ? resource : resource.url;
    if (!url || !url.includes("_dash-update-component")) return ask(resource, options);
    const body = options && options.body;
    if (typeof body === "string" && body.length > MOST) {
      return Promise.resolve(
        refused(413, "This is too large to be sent: at most 50 MB of a file are read.")
      );
    }
    return ask(resource, options).then(
      function (response) {
        if (response.status >= 400) {
          response.clone().json().then(
            function (said) { tell(said.error || "The server could not answer; reload the page."); },
            function () { tell("The server could not answer; reload the page."); }
          );
        }
        return response;
      },
      function (error) {
        tell("The server does not answer. Is `bubblescope dashboard` still running? Then reload.");
        throw error;
      }
    );
  };
})();
