/* Measure: what was uploaded last takes its place; a new trace goes with its own costs, unzoomed. */
(function () {
  "use strict";

  function choose(trace, run) {
    const by = window.dash_clientside.callback_context.triggered.map((one) => one.prop_id);
    const quiet = window.dash_clientside.no_update;
    let shown = quiet, over = quiet, view = quiet;
    if (by.includes("measure-own.n_clicks")) over = null;
    if (by.includes("measure-run-file-uploaded.data") && run) over = run.token;
    if (by.includes("measure-trace-file-uploaded.data") && trace) {
      shown = trace.token;
      view = null;
      if (typeof over !== "string" || trace.at > run.at) over = null;
    }
    return [shown, over, over === quiet ? quiet : over === null, view];
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { measure: { choose: choose } });
})();
