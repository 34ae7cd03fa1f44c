// Draws the charts of the page from the data beside them. No library: the file has to open anywhere, for years.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;
let frames = 0;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2"];

function element(name, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent !== null) parent.append(made);
  return made;
}

function part(name, className, parent, text = null) {
  const made = document.createElement(name);
  made.className = className;
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function colour(style) {
  return `var(--c${style % COLOURS})`;
}

function dash(style) {
  return DASHES[Math.floor(style / COLOURS) % DASHES.length];
}

function shown(value, percent) {
  if (value === null || value === undefined) return "–";
  if (percent) return `${(100 * value).toFixed(100 * Math.abs(value) < 10 ? 2 : 1)} %`;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function tickText(value, percent) {
  const number = percent ? 100 * value : value;
  const size = Math.abs(number);
  const text = size !== 0 && (size < 0.001 || size >= 1e7) ? String(Number(number.toPrecision(3))) : String(Number(number.toPrecision(7)));
  return percent ? `${text} %` : text;
}

function niceStep(span, count) {
  const raw = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
}

function linearTicks(low, high, count) {
  const step = niceStep(Math.abs(high - low) || 1, count);
  const [first, last] = [Math.min(low, high), Math.max(low, high)];
  const ticks = [];
  for (let k = Math.ceil(first / step - 1e-9); k * step <= last + 1e-9 * step; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks : [low, high];
}

// Math.min(...values) would overflow the stack for many values.
function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

// The ends of an axis: what the chart says, or what the data needs.
function range(values, logarithmic) {
  const known = values.filter((value) => value !== null && (!logarithmic || value > 0));
  if (known.length === 0) return [logarithmic ? 0.1 : 0, 1];
  let [low, high] = ends(known);
  if (logarithmic) return [low / 1.2, high * 1.2];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.5, high + Math.abs(high || 1) * 0.5];
  const room = 0.05 * (high - low);
  return [low === 0 ? 0 : low - room, high + room];
}

function drawPanel(chart, panel, width, hidden, host) {
  const tall = chart.small ? 0.6 : 0.5;
  const height = Math.round(Math.max(chart.small ? 130 : 220, Math.min(tall * width, 340)));
  const margin = { left: 52, right: 12, top: 8, bottom: chart.small ? 24 : 40 };
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${chart.title}. ${panel.title}` }, host);
  const visible = panel.series.filter((series) => !hidden.has(series.name));
  const xs = panel.series.flatMap((series) => series.x);
  let [x0, x1] = chart.ticks.length ? [-0.3, chart.ticks.length - 0.7] : ends(xs);
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const ys = visible.flatMap((series) => series.y);
  const [y0, y1] = panel.y_range || range(ys, chart.logarithmic);
  const scale = chart.logarithmic ? Math.log10 : (value) => value;
  const x = (value) => margin.left + ((value - x0) / (x1 - x0)) * (width - margin.left - margin.right);
  const y = (value) => height - margin.bottom - ((scale(value) - scale(y0)) / (scale(y1) - scale(y0))) * (height - margin.top - margin.bottom);
  const inside = (value) => value !== null && value !== undefined && (!chart.logarithmic || value > 0);

  if (chart.shaded) {
    const [from, to, label] = chart.shaded;
    const left = x(Math.max(from, x0)), right = x(Math.min(to, x1));
    if (right > left) {
      element("rect", { class: "shade", x: left, y: margin.top, width: right - left, height: height - margin.top - margin.bottom }, svg);
      if (right - left > 46 && !chart.small) element("text", { class: "tick", x: left + 5, y: margin.top + 14 }, svg, label);
    }
  }
  for (const tick of chart.logarithmic ? logTicks(y0, y1) : linearTicks(y0, y1, chart.small ? 3 : 5)) {
    element("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick) }, svg);
    element("text", { class: "tick", x: margin.left - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, tickText(tick, chart.percent));
  }
  const xTicks = chart.ticks.length ? chart.ticks.map((_, index) => index) : linearTicks(x0, x1, width < 420 ? 4 : 8);
  for (const tick of xTicks) {
    element("line", { class: "axis", x1: x(tick), x2: x(tick), y1: height - margin.bottom, y2: height - margin.bottom + 4 }, svg);
    const text = chart.ticks.length ? chart.ticks[tick] : tickText(tick, false);
    const room = chart.ticks.length ? Math.floor((width - margin.left) / chart.ticks.length / 6.5) : 99;
    element("text", { class: "tick", x: x(tick), y: height - margin.bottom + 17, "text-anchor": "middle" }, svg, text.length > room ? `…${text.slice(1 - room)}` : text);
  }
  element("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }, svg);
  if (!chart.small) element("text", { class: "tick", x: (margin.left + width) / 2, y: height - 5, "text-anchor": "middle" }, svg, chart.x_label);

  // Bands may be wider than the axes.
  const frame = `frame-${frames++}`;
  const clip = element("clipPath", { id: frame }, element("defs", {}, svg));
  element("rect", { x: margin.left, y: margin.top, width: width - margin.left - margin.right, height: height - margin.top - margin.bottom }, clip);
  for (const series of visible) {
    const group = element("g", { class: "series", "data-series": series.name }, svg);
    const band = series.low ? series.x.map((place, index) => [place, series.low[index], series.high[index]]).filter(([, low, high]) => inside(low) && inside(high)) : [];
    if (band.length > 1) {
      const edge = [...band.map(([place, , high]) => `${x(place)},${y(high)}`), ...band.reverse().map(([place, low]) => `${x(place)},${y(low)}`)];
      element("polygon", { class: "band", "clip-path": `url(#${frame})`, points: edge.join(" "), fill: colour(series.style) }, group);
    }
    let path = "", pen = "M", points = 0;
    series.x.forEach((place, index) => {
      const value = series.y[index];
      if (!inside(value)) { pen = "M"; return; }
      path += `${pen}${x(place).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
      points++;
    });
    if (points > 1) element("path", { d: path, stroke: colour(series.style), "stroke-dasharray": dash(series.style) }, group);
    if (points === 1 || chart.ticks.length) {
      series.x.forEach((place, index) => {
        if (!inside(series.y[index])) return;
        const [cx, cy] = [x(place), y(series.y[index])];
        element("path", { class: "mark", d: `M${cx - 5},${cy - 5}L${cx + 5},${cy + 5}M${cx - 5},${cy + 5}L${cx + 5},${cy - 5}`, stroke: colour(series.style) }, group);
      });
    }
  }
  if (visible.length > 4) labelEnds(visible, x, y, inside, svg);
  return { svg, x, y, x0, x1, width, height, margin, visible, inside };
}

// The names of the three highest lines, at their ends: colours alone are hard to match with a long legend.
function labelEnds(visible, x, y, inside, svg) {
  const ends = visible.map((series) => ({ series, index: series.y.findLastIndex(inside) })).filter(({ index }) => index >= 0);
  ends.sort((a, b) => b.series.y[b.index] - a.series.y[a.index]);
  const taken = [];
  for (const { series, index } of ends.slice(0, 3)) {
    const above = y(series.y[index]) - 7;
    const place = above < 14 ? above + 24 : above;
    if (  taken.some((other) => Math.abs(other - place) < 14)) continue;
    taken.push(place);
    element("text", { class: "end", x: x(series.x[index]), y: place, "text-anchor": "end", fill: colour(series.style) }, svg, series.name);
  }
}

function nearest(places, target) {
  let best = 0;
  places.forEach((place, index) => {
    if (Math.abs(place - target) < Math.abs(places[best] - target)) best = index;
  });
  return best;
}

// A rule at the pointer, and a list of what every visible line is worth there.
function follow(chart, axes, host) {
  const rule = element("line", { class: "rule", y1: axes.margin.top, y2: axes.height - axes.margin.bottom }, axes.svg);
  const note = part("div", "note", host);
  const leave = () => {
    note.classList.remove("open");
    rule.classList.remove("open");
    axes.svg.querySelectorAll(".series").forEach((line) => line.classList.remove("faded"));
  };
  const move = (event) => {
    const box = axes.svg.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * axes.width;
    const py = ((event.clientY - box.top) / box.height) * axes.height;
    const target = axes.x0 + ((px - axes.margin.left) / (axes.width - axes.margin.left - axes.margin.right)) * (axes.x1 - axes.x0);
    const rows = [];
    for (const series of axes.visible) {
      if (!series.x.length) continue;
      const index = nearest(series.x, target);
      if (axes.inside(series.y[index])) rows.push({ series, place: series.x[index], value: series.y[index] });
    }
    if (!rows.length) return leave();
    const place = rows.reduce((best, row) => (Math.abs(row.place - target) < Math.abs(best - target) ? row.place : best), rows[0].place);
    const near = rows.reduce((best, row) => (Math.abs(axes.y(row.value) - py) < Math.abs(axes.y(best.value) - py) ? row : best), rows[0]);
    rows.sort((a, b) => b.value - a.value);
    note.replaceChildren();
    part("div", "place", note, chart.ticks.length ? chart.ticks[place] : `${chart.x_label} ${Number(place.toFixed(2))}`);
    for (const row of rows) {
      const line = part("div", row === near ? "row near" : "row", note);
      line.append(swatch(row.series.style));
      part("span", "name", line, row.series.name);
      part("span", "value", line, shown(row.value, chart.percent));
    }
    axes.svg.querySelectorAll(".series").forEach((line) => line.classList.toggle("faded", rows.length > 3 && line.dataset.series !== near.series.name));
    rule.setAttribute("x1", axes.x(place));
    rule.setAttribute("x2", axes.x(place));
    rule.classList.add("open");
    note.classList.add("open");
    const offset = ((px / axes.width) * box.width) > box.width / 2 ? -note.offsetWidth - 14 : 14;
    note.style.left = `${Math.max(0, Math.min((px / axes.width) * box.width + offset, host.clientWidth - note.offsetWidth))}px`;
  };
  axes.svg.addEventListener("pointermove", move);
  axes.svg.addEventListener("pointerdown", move);
  axes.svg.addEventListener("pointerleave", leave);
}

function swatch(style) {
  const svg = element("svg", { class: "swatch", width: 22, height: 8, viewBox: "0 0 22 8", "aria-hidden": "true" });
  element("path", { d: "M0,4L22,4", stroke: colour(style), "stroke-dasharray": dash(style) }, svg);
  return svg;
}

function legend(chart, hidden, host, redraw) {
  const styles = new Map(chart.panels.flatMap((panel) => panel.series.map((series) => [series.name, series.style])));
  if (styles.size < 2) return;
  const names = [...styles.keys()];
  const bar = part("div", "legend", host);
  const buttons = names.map((name) => {
    const button = part("button", "key", bar);
    button.type = "button";
    button.append(swatch(styles.get(name)));
    part("span", "", button, name);
    button.addEventListener("click", () => {
      if (hidden.has(name)) hidden.delete(name);
      else hidden.add(name);
      update();
    });
    button.addEventListener("dblclick", () => {
      const alone = names.every((other) => hidden.has(other) === (other !== name));
      hidden.clear();
      if (!alone) names.filter((other) => other !== name).forEach((other) => hidden.add(other));
      update();
    });
    return button;
  });
  const update = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(!hidden.has(names[index]))));
    redraw();
  };
  buttons.forEach((button) => button.setAttribute("aria-pressed", "true"));
}

function start(figure, chart) {
  const hidden = new Set();
  let width = 0;
  const redraw = () => {
    width = grid.clientWidth;
    if (!width) return;
    const smallest = chart.small ? 150 : 330;
    grid.classList.toggle("small", chart.small);
    const columns = Math.max(1, Math.min(chart.panels.length, Math.floor((width + 16) / (smallest + 16))));
    grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    const each = Math.floor((width - 16 * (columns - 1)) / columns);
    grid.replaceChildren();
    for (const panel of chart.panels) {
      const host = part("div", "panel", grid);
      if (panel.title) part("div", "panel-title", host, panel.title);
      const plot = part("div", "plot", host);
      follow(chart, drawPanel(chart, panel, each, hidden, plot), plot);
    }
  };
  legend(chart, hidden, figure.querySelector(".chart"), redraw);
  const grid = part("div", "panels", figure.querySelector(".chart"));
  // Also when a folded part of the page is opened, which gives the figure its width.
  new ResizeObserver(() => { if (grid.clientWidth !== width) redraw(); }).observe(grid);
  redraw();
}

const charts = JSON.parse(document.getElementById("charts").textContent);
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  try {
    start(figure, charts[figure.dataset.chart]);
  } catch (error) {
    figure.querySelector(".chart").textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  }
}
