/* Explore: gathers what the controls say into one request, and sends the next one when the last
   has been answered, so that a slider never queues up work; turns clicks into ranks and times. */
(function () {
  "use strict";
  const PATIENCE = 5000; // an answer that takes longer no longer holds up the next request [ms]
  const page = { busy: 0, waiting: null, sent: null, view: null, set: {}, places: {}, job: null };

  function quiet() { return window.dash_clientside.no_update; }

  function idOf(group, name) { return { explore: group, name: name }; }

  function nearest(ladder, value) {
    let best = 0;
    ladder.forEach(function (one, i) {
      if (Math.abs(one - value) < Math.abs(ladder[best] - value)) best = i;
    });
    return best;
  }

  /* The box and the slider of a field say the same; the one that moved leads. */
  function couple(fields, sliders, ladders) {
    Object.keys(sliders).forEach(function (name) {
      const ladder = ladders[name], place = sliders[name], before = page.places[name];
      page.places[name] = place;
      if (before !== undefined && place !== before && place !== page.set[name]) {
        fields[name] = ladder[place];
        window.dash_clientside.set_props(idOf("field", name), { value: ladder[place] });
        return;
      }
      const near = nearest(ladder, Number(fields[name]));
      if (near !== place && page.set[name] !== near) {
        page.set[name] = near;
        window.dash_clientside.set_props(idOf("slider", name), { value: near });
      } else if (near === place) {
        delete page.set[name];
      }
    });
  }

  function sorted(table) {
    const made = {};
    Object.keys(table).sort().forEach(function (key) { made[key] = table[key]; });
    return made;
  }

  function windowOf(relayout, per) {
    if (!relayout) return undefined;
    if ("xaxis.range[0]" in relayout) {
      return [Math.max(0, relayout["xaxis.range[0]"] / per), relayout["xaxis.range[1]"] / per];
    }
    if ("xaxis.range" in relayout) return relayout["xaxis.range"].map((x) => Math.max(0, x / per));
    return relayout["xaxis.autorange"] ? null : undefined;
  }

  function meta() {
    const graph = plot();
    return (graph && graph.layout && graph.layout.meta) || {};
  }

  function plot() { return document.querySelector("#explore-run .js-plotly-plot"); }

  function send(request) {
    const now = Date.now();
    if (page.busy && now - page.busy < PATIENCE) {
      page.waiting = request;
      return quiet();
    }
    page.busy = now;
    page.waiting = null;
    return request;
  }

  function gather(values, checks, places, model, config, cluster, seqLen, tokens, price, critical,
    group, relayout, clicks, opened) {
    const context = window.dash_clientside.callback_context;
    const triggers = context.triggered.map((one) => one.prop_id);
    const named = function (i) { return context.inputs_list[i].map((one) => one.id.name); };
    if (page.view !== opened) { // another page was put in
      Object.assign(page, { busy: 0, waiting: null, sent: null, set: {}, places: {}, job: null });
      page.view = opened;
      page.window = opened.window;
      page.ranks = opened.ranks;
      page.there = opened.there;
      page.stale = !opened.answered;
      page.bubble = opened.bubble;
    }
    const fields = Object.assign({}, opened.plan), sliders = {};
    named(0).forEach(function (name, i) {
      fields[name] = typeof checks[i] === "boolean" ? checks[i] : values[i];
    });
    named(2).forEach(function (name, i) { sliders[name] = places[i]; });
    const by = function (name) { return triggers.includes(name); };
    couple(fields, sliders, opened.ladders);
    if (by("explore-model.value") && model && config) {
      config = null;
      window.dash_clientside.set_props("explore-config", { data: null });
    }
    Object.keys(fields).forEach(function (name) { // what is as usual is not said
      const value = fields[name], usual = opened.defaults[name];
      if (value === null || value === undefined || value === "" || String(value) === String(usual)) {
        delete fields[name];
      }
    });
    const job = { fields: sorted(fields), model: model, config: config, cluster: cluster, seq_len: seqLen };
    const words = JSON.stringify(job);
    let scope = "all";
    if (page.job !== null && page.job !== words) {
      page.window = null;
      page.ranks = null;
      page.bubble = null;
    }
    if (by("explore-run.relayoutData") && relayout && page.job === words) {
      const seen = windowOf(relayout, meta().per_si || 1);
      const rows = "yaxis.range[0]" in relayout
        ? [Math.min(relayout["yaxis.range[0]"], relayout["yaxis.range[1]"]),
          Math.max(relayout["yaxis.range[0]"], relayout["yaxis.range[1]"])]
        : undefined;
      if (seen !== undefined) page.window = seen;
      if (rows !== undefined) page.ranks = rows;
      if (seen !== undefined || rows !== undefined) scope = "view"; // else it was resized
    }
    if (by("explore-whole.n_clicks") && page.sent !== null) { page.window = null; page.ranks = null; scope = "view"; }
    if (by("explore-critical.checked")) scope = "view";
    if (page.job !== words) scope = "all";
    page.job = words;
    const request = Object.assign(job, {
      tokens: tokens, price: price, critical: critical, group: group,
      window: page.window, ranks: page.ranks, bubble: page.bubble,
    });
    const said = JSON.stringify(request);
    if (said === page.sent) return quiet();
    if (page.sent === null && opened.answered) { // the layout came with the answer
      page.sent = said;
      return Object.assign(request, { scope: "none" });
    }
    page.sent = said;
    if (page.waiting && page.waiting.scope === "all") scope = "all"; // it was not sent
    request.scope = scope;
    request.there = page.there; // what need not be sent again
    request.stale = page.stale;
    return send(request);
  }

  function settled(answered) {
    page.busy = 0;
    page.stale = Boolean(answered && answered.stale);
    if (answered && answered.there) page.there = answered.there;
    const next = page.waiting;
    if (next) {
      page.waiting = null;
      page.busy = Date.now();
      next.there = page.there;
      next.stale = page.stale;
      window.dash_clientside.set_props("explore-request", { data: next });
    }
  }

  function inspect(rank, time) {
    page.bubble = [rank, time];
    page.there = Object.assign({}, page.there, { words: null });
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
    inspect(Math.round(full.yaxis.p2d(y)), full.xaxis.p2d(x) / (meta().per_si || 1));
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

  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("#zoom-in")) zoom(0.5);
    if (event.target.closest && event.target.closest("#zoom-out")) zoom(2);
    const gap = event.target.closest && event.target.closest(".gap");
    if (gap) inspect(Number(gap.dataset.rank), Number(gap.dataset.time));
    const fix = event.target.closest && event.target.closest(".fix");
    if (!fix) return;
    event.preventDefault();
    const name = fix.dataset.fix, text = fix.dataset.value;
    const whole = ["model", "cluster", "seq_len"].includes(name);
    const id = whole ? "explore-" + name.replace("_", "-") : idOf("field", name);
    if (text === "True" || text === "False") {
      window.dash_clientside.set_props(id, { checked: text === "True" });
    } else {
      const number = text !== "" && !whole && !isNaN(Number(text)) && name !== "zero_stage";
      window.dash_clientside.set_props(id, { value: number ? Number(text) : text });
    }
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explore: { gather: gather, settled: settled },
  });
})();
