"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");

  // Put the theme's value where a chart names a CSS variable.
  function themed(value, css) {
    if (typeof value === "string") {
      const variable = /^var\((--[\w-]+)\)$/.exec(value);
      return variable ? css.getPropertyValue(variable[1]).trim() : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" ? value : value.map((item) => themed(item, css));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, css)]));
    }
    return value;
  }

  function draw(place) {
    const chart = charts[place.dataset.chart];
    if (!chart || typeof Plotly === "undefined") return;
    const { data, layout } = themed(chart, getComputedStyle(document.documentElement));
    if (narrow.matches) {
      layout.hovermode = "closest"; // a unified box would cover the chart
      layout.annotations = (layout.annotations || []).filter((note) => note.name !== "phase");
    }
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", chart.label);
    Plotly.react(place, data, layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: narrow.matches ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
  }

  function drawShown() {
    for (const place of document.querySelectorAll(".chart")) {
      if (place.offsetParent !== null) draw(place);
    }
  }

  // One GPU at a time; the address names it, so that a link leads to it.
  function show() {
    const sections = [...document.querySelectorAll("section.gpu")];
    if (sections.length > 1) {
      const wanted = decodeURIComponent(location.hash.slice(1));
      const shown = sections.find((section) => section.id === wanted) || sections[0];
      for (const section of sections) section.hidden = section !== shown;
      for (const link of document.querySelectorAll("a.gpu")) {
        const current = link.getAttribute("href") === `#${shown.id}`;
        const row = link.closest("tr");
        if (current) row.setAttribute("aria-current", "true");
        else row.removeAttribute("aria-current");
      }
    }
    drawShown();
  }

  function sortBy(heading) {
    const index = heading.cellIndex;
    const body = heading.closest("table").tBodies[0];
    const first = heading.classList.contains("number") ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const each of heading.parentElement.cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const key = (row) => {
      const cell = row.cells[index];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      if (typeof left === "number" && typeof right === "number") return sign * (left - right);
      return sign * String(left).localeCompare(String(right), undefined, { numeric: true });
    });
    body.append(...rows);
  }

  for (const button of document.querySelectorAll("table.sortable th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  addEventListener("hashchange", show);
  dark.addEventListener("change", drawShown);
  narrow.addEventListener("change", drawShown);
  show();
})();
