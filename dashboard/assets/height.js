/* A graph's place on the page is as high as its figure says. */
(function () {
  "use strict";

  function own(figure) {
    const height = figure && figure.layout && figure.layout.height;
    return height ? { height: height + "px" } : window.dash_clientside.no_update;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { height: { own: own } });
})();
