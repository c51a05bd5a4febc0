// Parallel coordinates: a line for each trial through its values. A brush on an axis leaves the trials within it.

import { colour } from "./scale.js";
import { svg } from "./dom.js";
import { compact, setting, toNumber, words } from "./format.js";
import { figure, text } from "./figure.js";

const [TOP, BOTTOM] = [34, 28];
const LOSS = "loss of the trial";

/** `brushes` maps an axis to the ends that are let through, as shares of it; it is kept between redraws. */
export function parallel(told, name, brushes, onBrush) {
  const trials = (told.trials ?? []).filter(
    (trial) => trial.kind !== "repeat" && Number.isFinite(toNumber(trial.loss)),
  );
  const knobs = (told.axes ?? []).map((each) => axisOf(each, trials)).filter(Boolean);
  if (knobs.length < 2 || trials.length < 3) return null;
  const shown = [...knobs, lossAxis(told, trials)];
  const passes = (trial) =>
    shown.every((axis) => {
      const brush = brushes.get(axis.path);
      if (!brush) return true;
      const at = axis.place(trial);
      return at !== null && at >= brush[0] && at <= brush[1];
    });
  const sign = told.metric?.greater_is_better ? -1 : 1;
  const ranked = trials.toSorted((a, b) => sign * (b.loss - a.loss));
  const made = figure({
    title: "Trials in parallel coordinates",
    name,
    height: 300,
    columns: ["trial", ...knobs.map((axis) => axis.path), told.metric?.name ?? "loss"],
    rows: () =>
      trials
        .filter(passes)
        .map((trial) => [trial.number, ...knobs.map((axis) => trial.values?.[axis.path]), trial.loss]),
    caption:
      "Stronger lines are better trials. Drag along an axis to keep only the trials in that range; click the axis to " +
      "clear it. With the keyboard, Enter sets a range, the arrow keys move it and Shift resizes it.",
    draw(root, width, height) {
      const [left, right] = [60, width - 60];
      const x = (at) => left + ((right - left) * at) / (shown.length - 1);
      const y = (part) => height - BOTTOM - part * (height - TOP - BOTTOM);
      drawLines(root, ranked, shown, passes, x, y);
      shown.forEach((axis, at) =>
        drawAxis(root, axis, x(at), y, (right - left) / (shown.length - 1), at, brushes, () => {
          made.redraw();
          onBrush();
          made.querySelector(`[data-axis="${at}"]`)?.focus();
        }),
      );
    },
  });
  made.passes = passes;
  return made;
}

function drawLines(root, ranked, shown, passes, x, y) {
  ranked.forEach((trial, rank) => {
    const goodness = (rank + 1) / ranked.length;
    const isIn = passes(trial);
    let isDown = false;
    const d = shown
      .map((axis, at) => {
        const part = axis.place(trial);
        if (part === null) {
          isDown = false;
          return "";
        }
        const pen = isDown ? "L" : "M";
        isDown = true;
        return `${pen}${x(at).toFixed(1)} ${y(part).toFixed(1)}`;
      })
      .join("");
    const line = svg("path", {
      d,
      fill: "none",
      stroke: colour(isIn ? "c0" : "mark"),
      "stroke-width": isIn ? 1 + 1.6 * goodness ** 3 : 0.8,
      opacity: isIn ? 0.12 + 0.85 * goodness ** 3 : 0.1,
    });
    line.append(svg("title", {}, `${trial.name ?? `trial ${trial.number}`}: ${compact(trial.loss, 5)}`));
    root.append(line);
  });
}

function drawAxis(root, axis, at, y, room, index, brushes, redraw) {
  const brush = brushes.get(axis.path);
  const most = Math.max(6, Math.floor(room / 6.4));
  const title = axis.title.length > most ? `${axis.title.slice(0, most - 1)}…` : axis.title;
  root.append(
    svg("line", { x1: at, x2: at, y1: y(0), y2: y(1), stroke: colour("dim") }),
    text(at, 14, title, { anchor: "middle", fill: "ink", weight: 600 }),
    text(at, y(1) - 6, axis.ends[1], { anchor: "middle" }),
    text(at, y(0) + 15, axis.ends[0], { anchor: "middle" }),
  );
  if (brush)
    root.append(
      svg("rect", {
        x: at - 7,
        width: 14,
        y: y(brush[1]),
        height: Math.max(2, y(brush[0]) - y(brush[1])),
        fill: colour("c1"),
        opacity: 0.35,
        rx: 2,
      }),
    );
  const told = brush ? `from ${axis.text(brush[0])} to ${axis.text(brush[1])}` : "all";
  const handle = svg("rect", {
    x: at - 14,
    width: 28,
    y: y(1) - 2,
    height: y(0) - y(1) + 4,
    fill: "transparent",
    class: "brush",
    tabindex: 0,
    role: "slider",
    "data-axis": index,
    "aria-label": `Brush on ${axis.title}`,
    "aria-orientation": "vertical",
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuenow": Math.round(100 * (brush ? (brush[0] + brush[1]) / 2 : 0.5)),
    "aria-valuetext": told,
  });
  const set = (low, high) => {
    if (low === null) brushes.delete(axis.path);
    else brushes.set(axis.path, [Math.max(0, Math.min(low, high)), Math.min(1, Math.max(low, high))]);
    redraw();
  };
  drag(handle, y, set);
  handle.addEventListener("keydown", (event) => press(event, brush, set));
  root.append(handle);
}

function drag(handle, y, set) {
  const partAt = (event) => {
    const { top, height } = handle.ownerSVGElement.getBoundingClientRect();
    const at = ((event.clientY - top) / height) * handle.ownerSVGElement.viewBox.baseVal.height;
    return (y(0) - at) / (y(0) - y(1));
  };
  handle.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    const start = partAt(event);
    const up = (ended) => {
      const end = partAt(ended);
      if (Math.abs(end - start) < 0.02) set(null);
      else set(start, end);
    };
    document.addEventListener("pointerup", up, { once: true });
  });
}

function press(event, brush, set) {
  const by = { ArrowUp: 0.05, ArrowDown: -0.05 }[event.key];
  if (event.key === "Enter" || event.key === " ") set(...(brush ? [null] : [0.35, 0.65]));
  else if (event.key === "Delete" || event.key === "Backspace") set(null);
  else if (by && brush)
    set(...(event.shiftKey ? [brush[0] - by / 2, brush[1] + by / 2] : [brush[0] + by, brush[1] + by]));
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function axisOf({ path, scale, low, high, choices }, trials) {
  const title = words(path.split(".").at(-1));
  if (scale === "choice" || choices?.length) return choiceAxis(path, title, choices ?? [], trials);
  const inner = { log: Math.log10, log_one_minus: (value) => -Math.log10(1 - value) }[scale] ?? ((value) => value);
  const outer =
    { log: (value) => 10 ** value, log_one_minus: (value) => 1 - 10 ** -value }[scale] ?? ((value) => value);
  const known = [...trials.map((trial) => trial.values?.[path]), low, high].filter(
    (value) => typeof value === "number" && Number.isFinite(inner(value)),
  );
  if (!known.length) return null;
  const [least, most] = [Math.min(...known.map(inner)), Math.max(...known.map(inner))];
  const show = (value) => compact(Number(value.toPrecision(3)));
  return {
    path,
    title,
    ends: [show(outer(least)), show(outer(most))],
    text: (part) => show(outer(least + part * (most - least))),
    place(trial) {
      const value = trial.values?.[path];
      return typeof value === "number" && Number.isFinite(inner(value))
        ? most > least
          ? (inner(value) - least) / (most - least)
          : 0.5
        : null;
    },
  };
}

function choiceAxis(path, title, choices, trials) {
  const names = [
    ...new Set(
      [...choices, ...trials.map((trial) => trial.values?.[path]).filter((value) => value !== undefined)].map(setting),
    ),
  ];
  if (!names.length) return null;
  const last = Math.max(1, names.length - 1);
  return {
    path,
    title,
    ends: [names[0], names.at(-1)],
    text: (part) => names[Math.round(part * last)] ?? "",
    place: (trial) => (trial.values && path in trial.values ? names.indexOf(setting(trial.values[path])) / last : null),
  };
}

/** The better end is on top. */
function lossAxis(told, trials) {
  const values = trials.map((trial) => trial.loss);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isUp = Boolean(told.metric?.greater_is_better);
  const [bottom, top] = isUp ? [low, high] : [high, low];
  const show = (value) => compact(value, 4);
  return {
    path: LOSS,
    title: words(told.metric?.name ?? "loss"),
    ends: [show(bottom), show(top)],
    text: (part) => show(bottom + part * (top - bottom)),
    place: (trial) => (high > low ? (trial.loss - bottom) / (top - bottom) : 0.5),
  };
}
