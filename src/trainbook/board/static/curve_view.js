// How curves are looked at, the same for all charts of a page: along what, which range, which axes are logarithmic, how
// much is smoothed. It lives in the address.

import { button, fill, h } from "./dom.js";
import { change, params } from "./place.js";

export const BY = { step: "Steps", tokens: "Tokens", time: "Time", flops: "FLOPs" };

const SMOOTHING =
  "An exponential average of each point and those before it, from 0 (none) to 100: it reaches back over " +
  "(n/100)² / 4 of the range in view. The values in the legend are those that were logged";

export class CurveView {
  /** `onChange("range" | "by" | "log" | "hidden" | "smoothing")`. `rulerOf()`: a curve in view with its steps, or null. */
  constructor(onChange, rulerOf) {
    this.onChange = onChange;
    this.rulerOf = rulerOf;
    this.read();
  }

  read() {
    const place = params();
    this.by = BY[place.get("by")] ? place.get("by") : "step";
    const ends = ["from", "to"].map((name) => (place.has(name) ? Number(place.get(name)) : NaN));
    this.range = ends.every(Number.isFinite) && ends[0] < ends[1] ? ends : null;
    this.steps = null; // of the range, while it is the same on another axis
    this.isPlaced = true; // false: the server is asked where the steps lie on this axis
    this.log = new Set(place.getAll("log"));
    this.linear = new Set(place.getAll("linear"));
    this.hidden = new Set(place.getAll("hide")); // keys of curves
    this.smoothing = Math.min(100, Math.max(0, Number(place.get("smooth")) || 0));
  }

  isLog(group, advised) {
    return advised ? !this.linear.has(group) : this.log.has(group);
  }

  turnLog(group, advised) {
    const own = advised ? this.linear : this.log;
    own[own.has(group) ? "delete" : "add"](group);
    change({ log: [...this.log], linear: [...this.linear] });
    this.onChange("log");
  }

  turnCurve(key) {
    this.hidden[this.hidden.has(key) ? "delete" : "add"](key);
    change({ hide: [...this.hidden] });
    this.onChange("hidden");
  }

  zoom(from, to) {
    const round = (value) =>
      this.by === "step" || this.by === "tokens" ? Math.round(value) : Number(value.toPrecision(8));
    let ends = [round(from), round(to)];
    if (ends[0] >= ends[1]) ends = this.by === "step" ? [ends[0] - 1, ends[0] + 1] : [from, to];
    this.range = ends;
    this.forgetSteps();
    change({ from: ends[0], to: ends[1] }, { push: true });
    this.onChange("range");
  }

  reset() {
    if (!this.range && this.isPlaced) return;
    this.range = null;
    this.forgetSteps();
    change({ from: null, to: null }, { push: true });
    this.onChange("range");
  }

  /** Half or twice the range, around its middle. `extent` is set by the page that knows it. */
  scale(factor) {
    if (!this.extent) return;
    const [low, high] = this.range ?? this.extent;
    const [middle, half] = [(low + high) / 2, (factor * (high - low)) / 2];
    const [from, to] = [Math.max(this.extent[0], middle - half), Math.min(this.extent[1], middle + half)];
    if (from <= this.extent[0] && to >= this.extent[1]) this.reset();
    else this.zoom(from, to);
  }

  /** The same stretch of steps stays in view. */
  setBy(by) {
    if (by === this.by) return;
    this.steps ??= this.stepsInView();
    this.by = by;
    this.range = by === "step" ? this.steps : null;
    this.isPlaced = by === "step" || !this.steps;
    this.writeRange();
    this.onChange("by");
  }

  stepsInView() {
    const steps = this.range?.map((x) => stepOf(x, this.by, this.rulerOf?.())) ?? [null];
    return steps.includes(null) || !(steps[0] < steps[1]) ? null : steps.map(Math.round);
  }

  /** What of the range a question names. */
  get asked() {
    const [from, to] = this.range ?? [null, null];
    const [from_step, to_step] = this.isPlaced ? [null, null] : this.steps;
    return { from, to, from_step, to_step };
  }

  /** The server's answer: where the stretch of steps lies on this axis. */
  place(range) {
    if (this.isPlaced) return;
    this.isPlaced = true;
    this.range = range ?? null;
    this.writeRange();
    this.showTools?.();
  }

  writeRange() {
    const [from, to] = this.range ?? [null, null];
    change({ by: this.by === "step" ? null : this.by, from, to });
  }

  forgetSteps() {
    this.steps = null;
    this.isPlaced = true;
  }

  setSmoothing(amount) {
    this.smoothing = amount;
    change({ smooth: amount || null });
    this.onChange("smoothing");
  }

  /** The row of controls. `ways` are those along which the curves can be drawn; `more` stands behind them. */
  tools(ways = Object.keys(BY), ...more) {
    const along = h("div", { class: "segmented", role: "group", "aria-label": "X axis" });
    const slider = h("input", {
      type: "range",
      min: 0,
      max: 100,
      step: 5,
      value: String(this.smoothing),
      on: { input: () => this.setSmoothing(Number(slider.value)) },
    });
    const amount = h("output", { class: "amount" }, String(this.smoothing));
    const zoom = (sign, factor, label) =>
      button(sign, () => this.scale(factor), { class: "small", "aria-label": label, title: label });
    const reset = button("Whole range", () => this.reset(), {
      title: "Double click on a chart, or 0",
      "data-focus": "reset",
    });
    this.showTools = () => {
      fill(
        along,
        ways.map((by) =>
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(this.by === by),
              "data-focus": `by ${by}`,
              on: { click: () => this.setBy(by) },
            },
            BY[by],
          ),
        ),
      );
      reset.disabled = !this.range;
      slider.value = amount.value = String(this.smoothing);
    };
    this.showTools();
    return h(
      "div",
      { class: "chart-tools" },
      along,
      h("label", { title: SMOOTHING }, "Smoothing", slider, amount),
      h("span", { class: "line" }, zoom("+", 0.5, "Zoom in"), zoom("−", 2, "Zoom out"), reset),
      more,
    );
  }
}

/** The x of a step: along steps itself, else by the steps that the server named for its columns. */
export function placeOf(step, by, curve) {
  return by === "step" ? step : between(curve?.step, curve?.x, step);
}

function stepOf(x, by, curve) {
  return by === "step" ? x : between(curve?.x, curve?.step, x);
}

/** Where a value of one rising list lies in the other. */
function between(known, wanted, value) {
  if (!known?.length) return null;
  if (value <= known[0]) return wanted[0];
  if (value >= known.at(-1)) return wanted.at(-1);
  let [low, high] = [0, known.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (known[middle] <= value) low = middle;
    else high = middle;
  }
  const share = (value - known[low]) / (known[high] - known[low] || 1);
  return wanted[low] + share * (wanted[high] - wanted[low]);
}
