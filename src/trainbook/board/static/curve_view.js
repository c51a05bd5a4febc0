// How curves are looked at, the same for all charts of a page: along what, which range, which axes are logarithmic, how
// much is smoothed. It lives in the address.

import { button, fill, h } from "./dom.js";
import { change, params } from "./place.js";

export const BY = { step: "Steps", tokens: "Tokens", time: "Time", flops: "FLOPs" };

export class CurveView {
  /** `onChange("range" | "by" | "log" | "smoothing")`. */
  constructor(onChange) {
    this.onChange = onChange;
    this.read();
  }

  read() {
    const place = params();
    this.by = BY[place.get("by")] ? place.get("by") : "step";
    const ends = ["from", "to"].map((name) => (place.has(name) ? Number(place.get(name)) : NaN));
    this.range = ends.every(Number.isFinite) && ends[0] < ends[1] ? ends : null;
    this.log = new Set(place.getAll("log"));
    this.linear = new Set(place.getAll("linear"));
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

  zoom(from, to) {
    const round = (value) =>
      this.by === "step" || this.by === "tokens" ? Math.round(value) : Number(value.toPrecision(8));
    let ends = [round(from), round(to)];
    if (ends[0] >= ends[1]) ends = this.by === "step" ? [ends[0] - 1, ends[0] + 1] : [from, to];
    this.range = ends;
    change({ from: ends[0], to: ends[1] }, { push: true });
    this.onChange("range");
  }

  reset() {
    if (!this.range) return;
    this.range = null;
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

  setBy(by) {
    this.by = by;
    this.range = null;
    change({ by: by === "step" ? null : by, from: null, to: null });
    this.onChange("by");
  }

  setSmoothing(amount) {
    this.smoothing = amount;
    change({ smooth: amount || null });
    this.onChange("smoothing");
  }

  /** The row of controls. `ways` are those along which the curves can be drawn; `more` stands behind them. */
  tools(ways = Object.keys(BY), ...more) {
    const along = h("div", { class: "segmented", role: "group", "aria-label": "Along" });
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
      h("label", {}, "Smoothing", slider, amount),
      h("span", { class: "line" }, zoom("+", 0.5, "Zoom in"), zoom("−", 2, "Zoom out"), reset),
      more,
    );
  }
}

/** The x of a step: along steps itself, else by the steps that the server named for its columns. */
export function placeOf(step, by, curve) {
  if (by === "step") return step;
  const [steps, x] = [curve?.step, curve?.x];
  if (!steps?.length) return null;
  if (step <= steps[0]) return x[0];
  if (step >= steps.at(-1)) return x.at(-1);
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle;
  }
  const share = (step - steps[low]) / (steps[high] - steps[low] || 1);
  return x[low] + share * (x[high] - x[low]);
}
