/* The part of a figure's time axis that is looked at, in seconds, for the pages' stores. */
(function () {
  "use strict";

  function view(relayout) {
    const quiet = window.dash_clientside.no_update;
    if (!relayout) return quiet;
    const id = window.dash_clientside.callback_context.triggered[0].prop_id.split(".")[0];
    const holder = document.getElementById(id);
    const graph = holder && holder.querySelector(".js-plotly-plot");
    const per = (graph && graph.layout && graph.layout.meta && graph.layout.meta.per_si) || 1;
    if (relayout["xaxis.autorange"]) return null;
    let range = relayout["xaxis.range"];
    if ("xaxis.range[0]" in relayout) {
      range = [relayout["xaxis.range[0]"], relayout["xaxis.range[1]"]];
    }
    return range ? range.map((x) => Math.max(0, x / per)) : quiet;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { zoom: { view: view } });
})();
