/* The part of a figure's time axis that is looked at, in seconds, for the pages' stores: read from
   the figure itself, so that no zoom is lost to a resize that is told in the same moment. */
(function () {
  "use strict";

  function seen(graph) {
    const axis = graph._fullLayout.xaxis, meta = graph.layout.meta, [low, high] = axis.range;
    const same = (a, b) => Math.abs(a - b) <= meta.end * 1e-6;
    if (same(low, meta.range[0]) && same(high, meta.range[1])) return meta.view; // as it was drawn
    if (axis.autorange || (low <= 0 && high >= meta.end)) return null;
    return [Math.max(0, low / meta.per_si), Math.max(0, high / meta.per_si)];
  }

  function view(_, before) {
    const quiet = window.dash_clientside.no_update;
    const id = window.dash_clientside.callback_context.triggered[0].prop_id.split(".")[0];
    const holder = document.getElementById(id);
    const graph = holder && holder.querySelector(".js-plotly-plot");
    if (!graph || !graph._fullLayout || !graph.layout.meta || !graph.layout.meta.range) return quiet;
    const now = seen(graph);
    return JSON.stringify(now) === JSON.stringify(before || null) ? quiet : now;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { zoom: { view: view } });
})();
