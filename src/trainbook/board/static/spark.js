// The small curve in a row, over the steps of its runs: a line that breaks where the loss was no number.

import { svg } from "./dom.js";
import { number, toNumber } from "./format.js";

const WIDTH = 112;
const HEIGHT = 26;

export function spark(runs, label = "Loss") {
  const all = runs.map((run) => (run.spark ?? []).map(toNumber));
  const steps = runs.map((run, at) => run.spark_steps ?? all[at].map((_, index) => index));
  const finite = all.flat().filter(Number.isFinite);
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    width: WIDTH,
    height: HEIGHT,
    class: "spark",
    role: "img",
    "aria-label": described(all, label),
  });
  if (!finite.length) return picture;
  const scale = scaleOf(finite);
  const known = steps.flat();
  const [first, last] = [Math.min(...known), Math.max(...known)];
  for (const [number, values] of all.entries()) {
    const share = (index) => (last > first ? (steps[number][index] - first) / (last - first) : 0.5);
    const x = (index) => 1 + (WIDTH - 2) * share(index);
    picture.append(
      svg("path", { d: pathOf(values, x, scale), class: "spark-line", opacity: all.length > 1 ? 0.55 : 1 }),
    );
    values.forEach((value, index) => {
      if (value !== null && !Number.isFinite(value))
        picture.append(svg("path", { d: `M${x(index) - 2.5} 1h5l-2.5 5z`, class: "spark-lost" }));
    });
  }
  return picture;
}

function scaleOf(finite) {
  let low = Math.min(...finite);
  let high = Math.max(...finite);
  const isLog = low > 0 && high > 30 * low;
  const place = isLog ? Math.log : (value) => value;
  [low, high] = [place(low), place(high)];
  return (value) => HEIGHT - 2 - ((HEIGHT - 4) * (place(value) - low)) / (high - low || 1);
}

function pathOf(values, x, y) {
  let isDown = false;
  return values
    .map((value, index) => {
      if (value === null || !Number.isFinite(value)) {
        isDown = false;
        return "";
      }
      const pen = isDown ? "L" : "M";
      isDown = true;
      const end = pen === "M" && !Number.isFinite(values[index + 1]) ? "h.1" : "";
      return `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}${end}`;
    })
    .join("");
}

function described(all, label) {
  const values = all[0] ?? [];
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return `${label}: nothing logged`;
  const lost = values.some((value) => value !== null && !Number.isFinite(value))
    ? ", with values that are no number"
    : "";
  return `${label} from ${number(finite[0])} to ${number(finite.at(-1))}${lost}`;
}
