/* Drop zones: choose or drop files, send them to the server as they are, and tell the page their
   token. What is too large is refused before it is sent. */
(function () {
  "use strict";

  function tell(name, text) {
    window.dash_clientside.set_props(name + "-upload-problem", { children: text });
  }

  function send(zone, files) {
    const name = zone.dataset.upload, most = Number(zone.dataset.mostBytes);
    const list = Array.from(files);
    if (!list.length) return;
    const size = list.reduce((sum, file) => sum + file.size, 0);
    if (size > most) {
      const mega = (n) => Math.round(n / 1e6).toLocaleString("en");
      tell(name, "The files have " + mega(size) + " MB; at most " + mega(most) +
        " MB are read. Record fewer steps or without stacks, or use `bubblescope trace`.");
      return;
    }
    const form = new FormData();
    list.forEach((file) => form.append("files", file, file.name));
    tell(name, "Reading ...");
    zone.classList.add("busy");
    fetch("/upload", { method: "POST", body: form })
      .then((reply) => reply.json().then((said) => [reply.ok, said]))
      .then(function (both) {
        const said = both[1];
        if (!both[0] || !said.token) throw new Error(said.error || "the server refused it");
        if (!zone.isConnected) return; // the page is gone
        tell(name, null);
        zone.sent = (zone.sent || []).concat([{ token: said.token }]);
        window.dash_clientside.set_props(name + "-uploaded", {
          data: { token: said.token, name: said.name, at: Date.now(), all: zone.sent },
        });
      })
      .catch((error) => tell(name, String(error.message || error)))
      .finally(() => zone.classList.remove("busy"));
  }

  function furnish(zone) {
    if (zone.dataset.ready) return;
    zone.dataset.ready = "yes";
    const label = document.createElement("label");
    label.textContent = zone.dataset.words;
    const input = document.createElement("input");
    Object.assign(input, { type: "file", multiple: true, accept: ".json,.gz" });
    input.setAttribute("aria-label", zone.dataset.words);
    input.addEventListener("change", function () {
      send(zone, input.files);
      input.value = "";
    });
    label.appendChild(input);
    zone.appendChild(label);
    zone.addEventListener("dragover", function (event) {
      event.preventDefault();
      zone.classList.add("over");
    });
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", function (event) {
      event.preventDefault();
      zone.classList.remove("over");
      send(zone, event.dataTransfer.files);
    });
  }

  new MutationObserver(function () {
    document.querySelectorAll("[data-upload]").forEach(furnish);
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
