/* Puts HTML that the server wrote, every text in it escaped, into its place as one piece. */
(function () {
  "use strict";

  function Markup(props) {
    const own = { dangerouslySetInnerHTML: { __html: props.html || "" } };
    Object.keys(props).forEach(function (name) {
      if (name === "id" || name === "className" || /^(aria|data)-/.test(name)) own[name] = props[name];
    });
    return window.React.createElement("div", own);
  }

  window.bubblescope = Object.assign({}, window.bubblescope, { Markup: Markup });
})();
