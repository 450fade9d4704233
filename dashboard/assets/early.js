/* Runs plotly while the page's layout is still on its way, so that figures need not wait for it. */
window.addEventListener("DOMContentLoaded", function () {
  const script = document.createElement("script");
  script.src = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  script.async = true;
  document.head.appendChild(script);
});
