/* Explore's timeline under the pointer: a click asks what is there, the wheel and buttons zoom, a
   value that works is taken over into its field. */
(function () {
  "use strict";

  function plot() { return document.querySelector("#explore-run .js-plotly-plot"); }

  function meta() {
    const graph = plot();
    return (graph && graph.layout && graph.layout.meta) || {};
  }

  function ask(rank, time) {
    window.dash_clientside.set_props("explore-spot", {
      data: { rank: rank, time: time, key: meta().key || null, at: Date.now() },
    });
  }

  /* A click, not a drag, on the rows. */
  let down = null;
  document.addEventListener("mousedown", function (event) {
    down = { x: event.clientX, y: event.clientY, target: event.target };
  }, true);
  document.addEventListener("mouseup", function (event) {
    const graph = plot();
    if (!down || !graph || !graph.contains(down.target)) return;
    if (Math.abs(event.clientX - down.x) + Math.abs(event.clientY - down.y) > 4) return;
    const area = graph.querySelector('.nsewdrag[data-subplot="xy"]');
    const full = graph._fullLayout;
    if (!area || !full) return;
    const box = area.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (x < 0 || y < 0 || x > box.width || y > box.height) return;
    ask(Math.round(full.yaxis.p2d(y)), full.xaxis.p2d(x) / (meta().per_si || 1));
  }, true);

  /* The wheel zooms with Ctrl alone; without it the page scrolls. */
  document.addEventListener("wheel", function (event) {
    const graph = plot();
    if (graph && graph.contains(event.target) && !event.ctrlKey && !event.metaKey) {
      event.stopPropagation();
    }
  }, true);

  function zoom(factor) {
    const graph = plot();
    if (!graph || !graph._fullLayout) return;
    const axis = graph._fullLayout.xaxis, middle = (axis.range[0] + axis.range[1]) / 2;
    const half = Math.abs(axis.range[1] - axis.range[0]) / 2 * factor;
    const top = axis.maxallowed || Infinity;
    window.Plotly.relayout(graph, {
      "xaxis.range[0]": Math.max(0, middle - half), "xaxis.range[1]": Math.min(top, middle + half),
    });
  }

  /* By a share of what is in view, as far as the step goes. */
  function pan(share) {
    const graph = plot();
    if (!graph || !graph._fullLayout) return;
    const axis = graph._fullLayout.xaxis, [low, high] = axis.range, by = share * (high - low);
    const most = (axis.maxallowed || Infinity) - high;
    const way = Math.min(most, Math.max(-low, by));
    window.Plotly.relayout(graph, { "xaxis.range[0]": low + way, "xaxis.range[1]": high + way });
  }

  function whole() {
    const graph = plot();
    if (!graph || !graph._fullLayout) return;
    const { xaxis, yaxis } = graph._fullLayout;
    window.Plotly.relayout(graph, {
      "xaxis.range": [xaxis.minallowed, xaxis.maxallowed],
      "yaxis.range": [yaxis.maxallowed, yaxis.minallowed],
    });
  }

  function take(name, text) {
    const isWhole = ["model", "cluster", "seq_len"].includes(name);
    const id = isWhole ? "explore-" + name.replace("_", "-") : { explore: "field", name: name };
    if (text === "True" || text === "False") {
      window.dash_clientside.set_props(id, { checked: text === "True" });
    } else {
      const number = text !== "" && !isWhole && !isNaN(Number(text)) && name !== "zero_stage";
      window.dash_clientside.set_props(id, { value: number ? Number(text) : text });
    }
  }

  document.addEventListener("click", function (event) {
    const on = (selector) => event.target.closest && event.target.closest(selector);
    if (on("#zoom-in")) zoom(0.5);
    if (on("#zoom-out")) zoom(2);
    if (on("#pan-back")) pan(-0.5);
    if (on("#pan-on")) pan(0.5);
    if (on("#explore-whole")) whole();
    const gap = on(".gap"), fix = on(".fix");
    if (gap) ask(Number(gap.dataset.rank), Number(gap.dataset.time));
    if (!fix) return;
    event.preventDefault();
    take(fix.dataset.fix, fix.dataset.value);
  });
})();
