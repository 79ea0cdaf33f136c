// Draws figures when they approach the viewport, in the colours of the page, and all of them before printing.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = {
    responsive: true,
    displaylogo: false,
    // Explicit list, since plotly's default includes a button that uploads the chart to a server.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    plotlyServerURL: "",
    toImageButtonOptions: { format: "png", scale: 2 },
  };
  const drawn = new Set();
  let printing = false;

  function colours() {
    // pages.js sets the theme of the surrounding page.
    const outerTheme = document.documentElement.dataset.theme;
    return (outerTheme ? outerTheme === "dark" : dark.matches) && !printing
      ? { text: "#b9c2ca", grid: "#2b3137", line: "#454d55", box: "#1d2226" }
      : { text: "#434c55", grid: "#e6e8ea", line: "#b9bfc5", box: "#ffffff" };
  }

  function theme(layout) {
    const colour = colours();
    const changes = {
      "font.color": colour.text,
      "font.size": 12,
      "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": colour.box,
      "hoverlabel.bordercolor": colour.line,
      "hoverlabel.font.color": colour.text,
      "hoverlabel.font.size": 11,
      "modebar.bgcolor": "rgba(0,0,0,0)",
      "modebar.color": colour.line,
      "modebar.activecolor": colour.text,
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        changes[key + ".gridcolor"] = colour.grid;
        changes[key + ".linecolor"] = colour.line;
        changes[key + ".title.font.size"] = 11;
        changes[key + ".tickfont.size"] = 11;
      }
      if (/^legend\d*$/.test(key)) {
        changes[key + ".font.size"] = 11;
        changes[key + ".bgcolor"] = "rgba(0,0,0,0)";
      }
    }
    return changes;
  }

  function assign(target, path, value) {
    const names = path.split(".");
    const last = names.pop();
    for (const name of names) {
      target = target[name] = target[name] || {};
    }
    target[last] = value;
  }

  function draw(place) {
    if (drawn.has(place)) {
      return;
    }
    drawn.add(place);
    const figure = figures[place.dataset.figure];
    for (const [path, value] of Object.entries(theme(figure.layout))) {
      assign(figure.layout, path, value);
    }
    Plotly.newPlot(place, figure.data, figure.layout, config);
  }

  function repaint(more) {
    for (const place of drawn) {
      Plotly.relayout(place, Object.assign(theme(place.layout), more || {}));
    }
  }

  const places = Array.from(document.querySelectorAll("[data-figure]"));
  const watcher = new IntersectionObserver(
    function (entries) {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          watcher.unobserve(entry.target);
          draw(entry.target);
        }
      }
    },
    { rootMargin: "900px 0px" }
  );
  places.forEach((place) => watcher.observe(place));
  dark.addEventListener("change", () => repaint());
  document.addEventListener("themechange", () => repaint());
  document.addEventListener("newfigures", function (event) {
    Object.assign(figures, event.detail);
    for (const place of drawn) {
      const figure = figures[place.dataset.figure];
      for (const [path, value] of Object.entries(theme(figure.layout))) {
        assign(figure.layout, path, value);
      }
      Plotly.react(place, figure.data, figure.layout, config);
    }
  });
  window.addEventListener("beforeprint", function () {
    printing = true;
    places.forEach(draw);
    repaint({ width: 700 });
  });
  window.addEventListener("afterprint", function () {
    printing = false;
    repaint({ width: null, autosize: true });
  });
})();
