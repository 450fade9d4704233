/* Learn's player: a curtain over the part of the schedule that has not happened yet. It moves in
   the browser alone; the server hears where it stands once it stands still. */
(function () {
  "use strict";
  const SECONDS = 12; // that a whole step takes at speed 1 [s]
  const QUIET = 250; // before the address is told [ms]
  const it = { at: null, end: 1, moments: [], playing: false, speed: 1, last: 0, told: 0, key: "" };

  function find(id) { return document.getElementById(id); }

  function scrub() {
    const place = find("learn-scrub");
    if (!place) return null;
    if (!place.firstChild) {
      const made = document.createElement("input");
      Object.assign(made, { type: "range", min: 0, max: 1000, step: 1 });
      made.setAttribute("aria-label", "time in the step");
      made.addEventListener("input", function () {
        it.playing = false;
        seek(Number(made.value) >= 1000 ? null : (it.end * Number(made.value)) / 1000);
      });
      place.appendChild(made);
    }
    return place.firstChild;
  }

  function digits(value) { return String(Math.round(value * 100) / 100); }

  function draw() {
    const stage = find("learn-stage");
    const graph = stage && stage.querySelector(".js-plotly-plot");
    const full = graph && graph._fullLayout;
    if (!full || !full._size || !full.xaxis) return false;
    const curtain = stage.querySelector(".curtain"), veil = curtain.firstChild;
    const size = full._size;
    const from = stage.getBoundingClientRect(), to = graph.getBoundingClientRect();
    curtain.style.left = to.left - from.left + size.l + "px";
    curtain.style.top = to.top - from.top + size.t - 2 + "px";
    curtain.style.width = size.w + "px";
    curtain.style.height = size.h + 2 + "px";
    curtain.hidden = it.at === null;
    const x = it.at === null ? size.w : full.xaxis.d2p(it.at);
    veil.style.transform = "translateX(" + Math.max(0, Math.min(size.w, x)) + "px)";
    const bar = scrub(), time = find("learn-time");
    const shown = it.at === null ? it.end : it.at;
    if (bar && document.activeElement !== bar) bar.value = String((1000 * shown) / it.end);
    if (bar) bar.setAttribute("aria-valuetext", digits(shown) + " of " + digits(it.end));
    if (time) time.textContent = digits(shown) + " / " + digits(it.end);
    const button = document.querySelector('[data-player="play"]');
    if (button) button.textContent = it.playing ? "Pause" : "▶ Play";
    return true;
  }

  function tell() {
    window.clearTimeout(it.told);
    it.told = window.setTimeout(function () {
      if (!find("learn-stage")) return;
      const at = it.at === null ? null : Math.round(it.at * 1e6) / 1e6;
      window.dash_clientside.set_props("learn-at", { data: at });
    }, QUIET);
  }

  function seek(at) {
    it.at = at;
    draw();
    if (!it.playing) tell();
  }

  function frame(now) {
    if (!it.playing) return;
    if (!find("learn-stage")) { it.playing = false; return; }
    const passed = it.last ? (now - it.last) / 1000 : 0;
    it.last = now;
    const at = (it.at || 0) + (passed * it.speed * it.end) / SECONDS;
    if (at >= it.end) { it.playing = false; seek(null); return; }
    it.at = at;
    draw();
    window.requestAnimationFrame(frame);
  }

  function step(by) {
    it.playing = false;
    const now = it.at === null ? it.end : it.at;
    const all = it.moments.concat([it.end]), near = it.end * 1e-6;
    const next = by > 0
      ? all.find((m) => m > now + near)
      : all.slice().reverse().find((m) => m < now - near);
    const at = next === undefined ? (by > 0 ? it.end : 0) : next;
    seek(at >= it.end - near ? null : at);
  }

  const actions = {
    play: function () {
      it.playing = !it.playing;
      if (!it.playing) return seek(it.at);
      if (it.at === null) it.at = 0;
      it.last = 0;
      window.requestAnimationFrame(frame);
      draw();
    },
    restart: function () { it.playing = false; seek(0); },
    back: function () { step(-1); },
    forward: function () { step(1); },
  };

  document.addEventListener("click", function (event) {
    const button = event.target.closest && event.target.closest("[data-player]");
    if (button) actions[button.dataset.player]();
  });

  document.addEventListener("keydown", function (event) {
    const free = event.target === document.body || (event.target.id === "content");
    if (!find("learn-stage") || !free || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": "play", ArrowRight: "forward", ArrowLeft: "back", Home: "restart" };
    if (!(event.key in keys)) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });

  window.addEventListener("resize", function () { window.setTimeout(draw, 120); });

  function load(figure, at) {
    const meta = figure && figure.layout && figure.layout.meta;
    if (!meta || !meta.moments) return;
    const key = JSON.stringify([meta.end, meta.moments.length, meta.moments[1]]);
    const first = !document.querySelector("#learn-scrub input");
    if (first) window.clearTimeout(it.told); // of a page before
    if (first) { it.at = typeof at === "number" && at < meta.end ? at : null; it.playing = false; }
    else if (key !== it.key) { it.playing = false; it.at = null; tell(); }
    Object.assign(it, { key: key, end: meta.end, moments: meta.moments });
    let tries = 0;
    const settle = function () {
      if (!draw() && tries++ < 50) window.setTimeout(settle, 60);
    };
    settle();
    window.setTimeout(draw, 300); // once the figure has its size
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    player: { load: load, pace: function (speed) { it.speed = Number(speed) || 1; } },
  });
})();
