// A chart in SVG, drawn at the width that it has, with its picture and its numbers to take along.

import { button, csv, fill, h, save, svg } from "./dom.js";
import { tickTexts } from "./format.js";
import { colour, linear, log, logTicks, padded, ticks } from "./scale.js";

/** `draw(root, width, height)` fills the SVG element; `rows` are what the CSV has. */
export function figure({ title, caption = "", height = 250, draw, columns, rows, name = title, label = title }) {
  const host = h("div");
  const tools = h(
    "span",
    { class: "tools" },
    button("PNG", () => picture(host.firstChild, name, title), { "aria-label": `Save ${title} as a PNG picture` }),
    rows
      ? button("CSV", () => save(`${name}.csv`, csv(columns, typeof rows === "function" ? rows() : rows), "text/csv"), {
          "aria-label": `Save the numbers of ${title} as CSV`,
        })
      : null,
  );
  const element = h(
    "figure",
    { class: "figure" },
    h("div", { class: "chart-head" }, h("h3", {}, title), tools),
    host,
    caption ? h("figcaption", {}, caption) : null,
  );
  let width = 0;
  const redraw = () => {
    width = Math.max(240, Math.floor(host.clientWidth || 600));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
    draw(root, width, height);
    fill(host, root);
  };
  const sized = new ResizeObserver(() => Math.abs(host.clientWidth - width) > 1 && host.clientWidth && redraw());
  sized.observe(host);
  const onTheme = () => (element.isConnected ? redraw() : stop());
  const stop = () => {
    sized.disconnect();
    removeEventListener("themechange", onTheme);
  };
  addEventListener("themechange", onTheme);
  element.redraw = redraw;
  return element;
}

const HEAD = 24; // pixels of the title of a picture

function picture(root, name, title) {
  const { width, height } = root.viewBox.baseVal;
  const copy = root.cloneNode(true);
  for (const [key, value] of Object.entries({
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    "font-family": "sans-serif",
    "font-size": 11,
  }))
    copy.setAttribute(key, value);
  const href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  const image = new Image();
  image.onload = () => {
    const canvas = h("canvas", { width: 2 * width, height: 2 * (height + HEAD) });
    const context = canvas.getContext("2d");
    context.fillStyle = colour("paper");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 2 * HEAD, 2 * width, 2 * height);
    context.font = "600 26px system-ui, sans-serif";
    context.fillStyle = colour("ink");
    context.fillText(title, 16, 32);
    URL.revokeObjectURL(href);
    canvas.toBlob((blob) => save(`${name}.png`, blob), "image/png");
  };
  image.src = href;
}

const MARGIN = { left: 56, right: 14, top: 10, bottom: 34 };

export function text(x, y, content, { anchor = "start", fill: tint = "dim", weight = null, size = 11 } = {}) {
  return svg(
    "text",
    { x, y, "text-anchor": anchor, fill: colour(tint), "font-weight": weight, "font-size": size },
    content,
  );
}

/** Axes with a grid; returns the two scales. */
export function axes(
  root,
  width,
  height,
  {
    x,
    y,
    margin = MARGIN,
    xTitle = "",
    yTitle = "",
    xLog = false,
    yLog = false,
    xText = null,
    yText = null,
    xTicks = null,
  },
) {
  const [left, right, top, bottom] = [margin.left, width - margin.right, margin.top, height - margin.bottom];
  const [xEnds, yEnds] = [padded(...x, xLog), padded(...y, yLog)];
  const xPlace = (xLog ? log : linear)(xEnds, [left, right]);
  const yPlace = (yLog ? log : linear)(yEnds, [bottom, top]);
  const yTicks = (yLog ? logTicks : ticks)(...yEnds, height / 48);
  const yTexts = yText ? yTicks.map(yText) : tickTexts(yTicks);
  yTicks.forEach((each, at) =>
    root.append(
      svg("line", { x1: left, x2: right, y1: yPlace(each), y2: yPlace(each), stroke: colour("grid") }),
      text(left - 6, yPlace(each) + 4, yTexts[at], { anchor: "end" }),
    ),
  );
  const xAll = xTicks ?? (xLog ? logTicks : ticks)(...xEnds, (right - left) / 90);
  const xTexts = xText ? xAll.map(xText) : tickTexts(xAll);
  xAll.forEach((each, at) =>
    root.append(
      svg("line", { x1: xPlace(each), x2: xPlace(each), y1: top, y2: bottom, stroke: colour("grid") }),
      text(xPlace(each), bottom + 15, xTexts[at], { anchor: "middle" }),
    ),
  );
  const titleOf = (title, isLog) => [title, isLog ? "log scale" : ""].filter(Boolean).join(", ");
  const [below, above] = [titleOf(xTitle, xLog), titleOf(yTitle, yLog)];
  if (below) root.append(text((left + right) / 2, height - 4, below, { anchor: "middle" }));
  if (above) root.append(text(left, top - 1, above));
  return { x: xPlace, y: yPlace };
}

export function path(points, tint, { width = 1.6, dash = null, opacity = 1 } = {}) {
  const d = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return svg("path", {
    d,
    fill: "none",
    stroke: tint,
    "stroke-width": width,
    "stroke-dasharray": dash,
    opacity,
    "stroke-linejoin": "round",
  });
}

export function dot(x, y, tint, { radius = 4, title = "", hollow = false, on = null } = {}) {
  const circle = svg("circle", {
    cx: x,
    cy: y,
    r: radius,
    fill: hollow ? "none" : tint,
    stroke: tint,
    "stroke-width": 1.4,
    class: on ? "dot" : null,
    on: on ? { click: on } : null,
  });
  if (title) circle.append(svg("title", {}, title));
  return circle;
}

export function extent(values) {
  const finite = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : null;
}
