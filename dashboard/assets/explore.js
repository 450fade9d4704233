/* Explore: what the controls say is what is wanted; the last answer is what is shown. As long as
   they differ one request is on its way, never two, so that a slider never queues up work and no
   answer comes after a newer one. Nothing depends on which change was told first or with which. */
(function () {
  "use strict";
  const PATIENCE = 10000; // an answer that takes longer no longer holds up the next request [ms]
  const LOOKS = ["window", "ranks", "critical"]; // these change the timeline alone
  const page = { view: null };
  let count = 0; // of requests, on all visits

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
        delete page.set[name];
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

  function plot() { return document.querySelector("#explore-run .js-plotly-plot"); }

  function meta() {
    const graph = plot();
    return (graph && graph.layout && graph.layout.meta) || {};
  }

  /* The part of an axis that is in view: what it was drawn for, unless the reader has moved it;
     null for all of it. */
  function part(axis, drawn, asked, per) {
    const near = Math.abs(axis.maxallowed - axis.minallowed) * 1e-6;
    const same = function (a, b) { return Math.abs(a - b) <= near; };
    const low = Math.min(axis.range[0], axis.range[1]), high = Math.max(axis.range[0], axis.range[1]);
    if (same(low, Math.min(drawn[0], drawn[1])) && same(high, Math.max(drawn[0], drawn[1]))) return asked;
    if (low <= axis.minallowed + near && high >= axis.maxallowed - near) return null;
    return [low / per, high / per];
  }

  function look() {
    const graph = plot(), full = graph && graph._fullLayout, drawn = meta();
    if (!full || !full.xaxis || !drawn.x || drawn.key !== page.key) return;
    const seen = part(full.xaxis, drawn.x, drawn.window, drawn.per_si);
    page.window = seen && [Math.max(0, seen[0]), seen[1]];
    page.ranks = part(full.yaxis, drawn.y, drawn.ranks, 1);
  }

  function open(opened, spot) { // another page was put in
    window.clearTimeout(page.timer);
    Object.assign(page, {
      view: opened, set: {}, places: {}, spot: spot, job: null, controls: 0, asked: new Map(),
      flight: null, wanted: null, shown: null, said: null, stale: !opened.answered,
      window: opened.window, ranks: opened.ranks, bubble: opened.bubble,
      there: opened.there, key: opened.key,
    });
  }

  function gather(values, checks, places, model, config, cluster, seqLen, tokens, price, critical,
    group, relayout, visit, spot, opened) {
    const context = window.dash_clientside.callback_context;
    const triggers = context.triggered.map((one) => one.prop_id);
    const named = function (i) { return context.inputs_list[i].map((one) => one.id.name); };
    const isFirst = page.view !== opened;
    if (isFirst) open(opened, spot);
    const fields = Object.assign({}, opened.plan), sliders = {};
    named(0).forEach(function (name, i) {
      fields[name] = typeof checks[i] === "boolean" ? checks[i] : values[i];
    });
    named(2).forEach(function (name, i) { sliders[name] = places[i]; });
    couple(fields, sliders, opened.ladders);
    if (triggers.includes("explore-model.value") && model && config) {
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
    if (page.job !== null && page.job !== words) {
      page.window = null;
      page.ranks = null;
      page.bubble = null;
    } else if (triggers.includes("explore-run.relayoutData")) {
      look();
    }
    page.job = words;
    if (spot !== page.spot) {
      page.spot = spot;
      if (spot) point(spot, words);
    }
    page.wanted = Object.assign(job, {
      tokens: tokens, price: price, critical: critical, group: group,
      window: page.window, ranks: page.ranks, bubble: page.bubble, visit: visit,
    });
    if (page.stale && page.controls !== named(0).length) page.said = null; // mark the new ones too
    page.controls = named(0).length;
    if (isFirst && opened.answered) { // the layout came with the answer, in the theme of then
      page.shown = Object.assign({}, page.wanted, { visit: Object.assign({}, visit, { theme: opened.theme }) });
      page.said = JSON.stringify(page.shown);
      if (page.said === JSON.stringify(page.wanted)) {
        return Object.assign({ scope: "none" }, page.wanted);
      }
    }
    return next() || quiet();
  }

  /* What was clicked explains itself, unless the timeline that was clicked is gone. */
  function point(spot, words) {
    const isGone = spot.key !== page.key || (page.shown && jobOf(page.shown) !== words);
    if (!isGone) {
      page.bubble = [spot.rank, spot.time];
      return;
    }
    page.there = Object.assign({}, page.there, { words: null });
    window.dash_clientside.set_props("explore-inspector", {
      children: {
        namespace: "dash_html_components",
        type: "P",
        props: { children: "The timeline has changed since that click; click again.", className: "muted" },
      },
    });
  }

  function jobOf(request) {
    const { fields, model, config, cluster, seq_len } = request;
    return JSON.stringify({ fields, model, config, cluster, seq_len });
  }

  /* How much has to be drawn anew. */
  function scope() {
    const differs = (name) => JSON.stringify(page.shown[name]) !== JSON.stringify(page.wanted[name]);
    if (!page.shown || page.stale) return "all";
    const changed = Object.keys(page.wanted).filter(differs);
    if (changed.some((name) => name !== "bubble" && !LOOKS.includes(name))) return "all";
    return changed.some((name) => LOOKS.includes(name)) ? "view" : "bubble";
  }

  function next() {
    const said = JSON.stringify(page.wanted);
    if (page.flight || said === page.said) return null;
    const number = ++count;
    page.asked.set(number, page.wanted);
    page.flight = { number: number, said: said };
    page.timer = window.setTimeout(function () { lose(number); }, PATIENCE);
    return Object.assign({}, page.wanted, {
      scope: scope(), number: number,
      there: page.there, // what need not be sent again
      stale: page.stale,
    });
  }

  function push() {
    const request = next();
    if (request) window.dash_clientside.set_props("explore-request", { data: request });
  }

  function land() {
    window.clearTimeout(page.timer);
    page.flight = null;
  }

  /* No answer came, or none that can be used: what is wanted since then is asked for. */
  function lose(number) {
    if (!page.flight || page.flight.number !== number) return;
    const failed = page.flight.said;
    land();
    if (JSON.stringify(page.wanted) !== failed) push();
  }

  function settled(answered) {
    const number = answered && answered.number, asked = page.asked && page.asked.get(number);
    if (!asked) return; // of a page before
    page.asked.forEach(function (_, one) { if (one <= number) page.asked.delete(one); });
    page.shown = asked;
    page.said = JSON.stringify(asked);
    page.stale = Boolean(answered.stale);
    if (answered.there) page.there = answered.there;
    if (answered.key) page.key = answered.key;
    if (page.flight && page.flight.number <= number) land();
    push();
  }

  window.addEventListener("unanswered", function (event) {
    if (page.flight && event.detail.includes('"changedPropIds":["explore-request.data"]')) {
      lose(page.flight.number);
    }
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explore: { gather: gather, settled: settled },
  });
})();
