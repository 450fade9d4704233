/* Design: the rows as a grid of ops to click into. Edits go into the text, which is the truth. */
(function () {
  "use strict";
  const it = { rows: [], spots: [], focus: [0, 0], latest: null, waiting: null, timer: 0 };
  const QUIET = 350; // after the last key, before the rows run [ms]
  const OP = /^(\d+)([FBIW])(\d+)$/;
  const WORDS = { F: "forward", B: "backward", I: "input gradient", W: "weight gradient" };

  function holder() { return document.getElementById("design-grid"); }

  function kindOf(text) {
    const match = OP.exec(text);
    return match ? match[2] : text ? "other" : "";
  }

  function cell(rank, at) {
    return holder() && holder().querySelector('[data-rank="' + rank + '"][data-at="' + at + '"]');
  }

  function draw() {
    const place = holder();
    if (!place) return;
    if (!it.rows.length) {
      const words = document.createElement("p");
      words.className = "muted";
      words.textContent = it.latest ? "So many ops are shown as text alone; see below." : "";
      place.replaceChildren(words);
      return;
    }
    const marked = new Set(it.spots.map((spot) => spot.join(":")));
    const table = document.createElement("table");
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", "ops of each rank");
    it.rows.forEach(function (row, rank) {
      const line = table.insertRow(), head = document.createElement("th");
      head.scope = "row";
      head.textContent = "rank " + rank;
      line.appendChild(head);
      row.concat([""]).forEach(function (text, at) {
        const box = line.insertCell(), button = document.createElement("button");
        const stuck = marked.has(rank + ":" + at), match = OP.exec(text);
        button.type = "button";
        button.dataset.rank = rank;
        button.dataset.at = at;
        button.className = "op op-" + (kindOf(text) || "end") + (stuck ? " stuck" : "");
        button.textContent = text ? text : "+";
        button.tabIndex = rank === it.focus[0] && at === it.focus[1] ? 0 : -1;
        const words = match
          ? "stage " + match[1] + " " + WORDS[match[2]] + " " + match[3]
          : text || "end of the row";
        const short = text ? text + ", " : "+, ";
        button.setAttribute("aria-label", short + words + (stuck ? ", stuck here" : ""));
        button.title = words + (stuck ? ": stuck here" : "");
        box.appendChild(button);
      });
    });
    place.replaceChildren(table);
    const first = place.querySelector(".stuck");
    if (first && place.scrollWidth > place.clientWidth) {
      place.scrollLeft = Math.max(0, first.offsetLeft - place.clientWidth / 2);
    }
  }

  function send() {
    const text = it.rows.map((row) => row.join(",")).join("\n");
    it.spots = [];
    draw();
    focus(it.focus[0], it.focus[1]);
    window.dash_clientside.set_props("design-rows", { value: text });
    hand(text);
  }

  function hand(text) {
    window.clearTimeout(it.timer);
    it.waiting = null;
    if (!holder()) return; // the page is gone
    it.latest = text;
    window.dash_clientside.set_props("design-text", { data: text });
  }

  /* The text was typed, or put in by us, which was handed on already. */
  function typed(text) {
    if (typeof text !== "string" || text === it.latest) return;
    window.clearTimeout(it.timer);
    it.latest = text;
    it.timer = window.setTimeout(function () { hand(text); }, QUIET);
    it.waiting = text;
  }

  /* Whoever leaves the text is done with it: what comes next, as a click on Improve, reads it. */
  document.addEventListener("focusout", function (event) {
    if (event.target.id === "design-rows" && it.waiting !== null) hand(it.waiting);
  });

  /* The next op of a kind that the rank's stages still lack; the emptiest stage first. */
  function missing(rank, kind) {
    const have = {}, mine = new Set();
    it.rows.forEach(function (row, r) {
      row.forEach(function (text) {
        const match = OP.exec(text);
        if (!match) return;
        if (r === rank) mine.add(Number(match[1]));
        if (match[2] === kind) (have[match[1]] = have[match[1]] || new Set()).add(Number(match[3]));
      });
    });
    const stages = Array.from(mine.size ? mine : new Set([rank])).sort((a, b) => a - b);
    let best = null;
    stages.forEach(function (stage) {
      let next = 0;
      while (have[stage] && have[stage].has(next)) next++;
      if (best === null || next < best[1]) best = [stage, next];
    });
    return best[0] + kind + best[1];
  }

  function insert(rank, at, kind) {
    it.rows[rank].splice(at, 0, missing(rank, kind));
    it.focus = [rank, at + 1];
    send();
  }

  function erase(rank, at) {
    if (at >= it.rows[rank].length) return;
    it.rows[rank].splice(at, 1);
    it.focus = [rank, at];
    send();
  }

  function swap(rank, at, by) {
    const row = it.rows[rank], to = at + by;
    if (to < 0 || to >= row.length || at >= row.length) return;
    [row[at], row[to]] = [row[to], row[at]];
    it.focus = [rank, to];
    send();
  }

  function focus(rank, at) {
    if (!it.rows.length) return;
    rank = Math.max(0, Math.min(it.rows.length - 1, rank));
    at = Math.max(0, Math.min(it.rows[rank].length, at));
    const before = cell(it.focus[0], it.focus[1]), now = cell(rank, at);
    if (before) before.tabIndex = -1;
    it.focus = [rank, at];
    if (now) { now.tabIndex = 0; now.focus(); }
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest && event.target.closest("#design-grid [data-rank]");
    if (!button) return;
    const rank = Number(button.dataset.rank), at = Number(button.dataset.at);
    it.focus = [rank, at];
    const chosen = document.querySelector("#design-tool input:checked");
    const tool = chosen ? chosen.value : "F";
    if (tool === "erase") erase(rank, at);
    else if (tool === "earlier") swap(rank, at, -1);
    else if (tool === "later") swap(rank, at, 1);
    else insert(rank, at, tool);
  });

  document.addEventListener("keydown", function (event) {
    const button = event.target.closest && event.target.closest("#design-grid [data-rank]");
    if (!button || event.ctrlKey || event.metaKey || event.altKey) return;
    const rank = Number(button.dataset.rank), at = Number(button.dataset.at);
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const letter = event.key.toUpperCase();
    if (event.key in moves) {
      const by = moves[event.key];
      if (event.shiftKey && by[1]) swap(rank, at, by[1]);
      else focus(rank + by[0], at + by[1]);
    } else if (event.key === "Delete") erase(rank, at);
    else if (event.key === "Backspace") { if (at > 0) erase(rank, at - 1); }
    else if ("FBIW".includes(letter) && letter.length === 1) insert(rank, at, letter);
    else return;
    event.preventDefault();
  });

  function show(cells) {
    if (!cells || !holder()) return;
    if (it.latest !== null && cells.text !== it.latest && holder().firstChild) return; // late
    it.latest = cells.text;
    it.rows = cells.rows;
    it.spots = cells.spots;
    const inside = holder().contains(document.activeElement);
    draw();
    if (inside) focus(it.focus[0], it.focus[1]);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    design: { show: show, typed: typed },
  });
})();
