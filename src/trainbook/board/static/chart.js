// A chart of curves. uPlot has the axes, the cursor and the selection; what is drawn between them is in chart_draw.js.
//
// A series: {key, label, colour (a number of the palette), isBand, curve: {x, low, high, first, last, mean, bad, raw,
// step}}.

import { announce, button, fill, fileName, h, save } from "./dom.js";
import { bytes, clock, compact, count, duration, number, plural, tickTexts, toNumber } from "./format.js";
import { canBeSmoothed, drawChart, extentOf, smoothingWindow } from "./chart_draw.js";
import { MarkStrip } from "./chart_marks.js";
import { hasPointIn, nearest, passesThrough, valueAt } from "./chart_values.js";
import { byteTicks, colour, logTicks, padded, PALETTE, ticks, timeTicks } from "./scale.js";

const LEFT = 58; // pixels of the y axis, the same for all so that charts stand under each other
const TITLE = 16; // pixels of the title of the x axis
const NEAR = 6; // pixels from a mark that a click still means it
const X_TICKS = { step: tickTexts, tokens: tickTexts, flops: tickTexts, time: (all) => all.map(clock) };
const X_TEXT = {
  step: (value) => count(value),
  tokens: (value) => compact(value),
  flops: (value) => compact(value),
  time: (value) => duration(value),
};
const X_TITLES = {
  step: () => "steps",
  tokens: () => "tokens",
  flops: () => "FLOPs (estimated)",
  time: (longest) => (longest < 3600 ? "time (min:s)" : "time (h:min:s)"),
};
const X_UNITS = { step: " steps", tokens: " tokens", flops: " FLOPs", time: "" };

export class Chart {
  constructor({
    title,
    unit = "",
    height = 170,
    sync = null,
    isWide = false,
    withMarks = false,
    csv = null,
    onZoom,
    onReset,
    onLog,
    onToggle,
    name = title,
  }) {
    Object.assign(this, { title, unit, sync, withMarks, onZoom, onReset, onLog, onToggle, name });
    this.height = height + TITLE;
    this.state = { series: [], marks: [], clip: null, view: null, by: "step", isLog: false, smoothing: 0 };
    this.state.hidden = new Set(); // keys of curves
    this.at = h("span", { class: "at" });
    this.notes = h("span", { class: "dim notes", hidden: true });
    this.legend = h("div", { class: "legend", role: "group", "aria-label": `Curves of ${title}` });
    this.logButton = onLog
      ? button("log", () => onLog(), {
          "aria-pressed": "false",
          title: "Logarithmic y axis",
          "aria-label": `Logarithmic axis for ${title}`,
        })
      : null;
    const tools = h(
      "span",
      { class: "tools" },
      this.logButton,
      button("PNG", () => this.savePicture(), { "aria-label": `Save ${title} as a PNG picture` }),
    );
    this.csv = csv;
    if (csv) {
      this.csvLink = this.download("CSV", `Save all points of ${title} as CSV`);
      this.rangeLink = this.download("CSV of the view", `Save the points of ${title} in the visible range as CSV`);
      tools.append(this.csvLink, this.rangeLink);
    }
    this.plot = h("div", {
      class: "plot",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "chart",
      on: { keydown: (event) => this.press(event) },
    });
    this.none = h("div", { class: "none" }, "loading …");
    this.plot.append(this.none);
    this.strip = withMarks ? new MarkStrip(this) : null;
    this.element = h(
      "figure",
      { class: `chart ${isWide ? "wide" : ""}` },
      h(
        "div",
        { class: "chart-head" },
        h("h3", { title: unit ? `in ${unit}` : null }, title),
        this.legend,
        this.at,
        this.notes,
        tools,
      ),
      this.strip?.element,
      this.plot,
    );
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.plot);
    this.onTheme = () => this.rebuild();
    addEventListener("themechange", this.onTheme);
  }

  download(text, label) {
    return h("a", { "aria-label": label, title: label }, text);
  }

  get width() {
    return Math.max(120, Math.floor(this.plot.clientWidth || this.element.clientWidth || 600));
  }

  /** Pixels of the plot itself: the server answers with a minimum and a maximum for each. */
  get columns() {
    return Math.max(100, this.width - LEFT - 18);
  }

  show(state) {
    const before = this.state;
    this.state = { ...before, ...state };
    this.state.visible = this.state.series.filter((each) => !this.state.hidden.has(each.key));
    if (!this.uplot || before.isLog !== this.state.isLog || before.by !== this.state.by) this.rebuild();
    else this.redraw();
    this.tell();
  }

  rebuild() {
    this.uplot?.destroy();
    this.uplot = null;
    if (!this.plot.isConnected || !this.plot.clientWidth) return; // drawn when it has a place: see fit
    const axis = {
      stroke: colour("dim"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { show: false },
      gap: 4,
    };
    const { isLog } = this.state;
    this.uplot = new uPlot(
      {
        width: this.width,
        height: this.height,
        padding: [6, 18, 0, 0],
        legend: { show: false },
        scales: {
          x: { time: false, range: () => this.viewX() },
          y: { distr: isLog ? 3 : 1, range: () => this.viewY() },
        },
        series: [{}, { paths: () => null, points: { show: false } }],
        axes: [
          {
            ...axis,
            size: 24,
            label: () => this.xTitle(),
            labelFont: axis.font,
            labelSize: TITLE,
            labelGap: 2,
            splits: (u, at, low, high) => this.xTicks(low, high),
            values: (u, all) =>
              this.state.by === "step" && all.at(-1) < 1e5
                ? all.map(count)
                : (X_TICKS[this.state.by] ?? tickTexts)(all),
          },
          {
            ...axis,
            size: LEFT,
            splits: (u, at, low, high) =>
              (isLog ? logTicks : this.unit === "bytes" ? byteTicks : ticks)(low, high, this.height / 34),
            filter: (u, all) => all,
            values: (u, all) => (this.unit === "bytes" ? all.map((each) => bytes(each)) : tickTexts(all)),
          },
        ],
        cursor: {
          sync: this.sync ? { key: this.sync, setSeries: false, scales: ["x", null] } : undefined,
          x: true,
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          bind: {
            dblclick: () => () => {
              this.onReset?.();
              return null;
            },
          },
        },
        hooks: {
          draw: [(u) => drawChart(u, { ...this.state, isFirst: this.withMarks }), () => this.strip?.place()],
          setCursor: [(u) => this.follow(u)],
          setSelect: [(u) => this.select(u)],
          ready: [(u) => this.listenToClicks(u)],
        },
      },
      this.dummy(),
      this.plot,
    );
  }

  redraw() {
    this.uplot.setData(this.dummy(), false);
    this.uplot.batch(() => {
      const [low, high] = this.viewX();
      this.uplot.setScale("x", { min: low, max: high });
    });
  }

  /** uPlot only has to know where x begins and ends. */
  dummy() {
    return [this.viewX(), [null, null]];
  }

  xTicks(low, high) {
    const found = (this.state.by === "time" ? timeTicks : ticks)(low, high, Math.max(2, this.columns / 90));
    return ["step", "tokens"].includes(this.state.by) ? found.filter(Number.isInteger) : found;
  }

  xTitle() {
    return (X_TITLES[this.state.by] ?? X_TITLES.step)(this.viewX()[1]);
  }

  text(value) {
    if (this.unit === "bytes") return bytes(value);
    const known = toNumber(value);
    return Math.abs(known) >= 10_000 ? compact(known, 4) : number(value);
  }

  viewX() {
    const [low, high] = this.state.view ?? extentOf(this.state.series, "x") ?? [0, 1];
    return high > low ? [low, high] : [low - 0.5, high + 0.5];
  }

  viewY() {
    const { isLog, clip, visible = [] } = this.state;
    const extent = extentOf(visible, "y", isLog, this.state.view ?? undefined) ?? extentOf(visible, "y", isLog);
    if (!extent) return isLog ? [0.1, 10] : [0, 1];
    let [low, high] = extent;
    if (clip !== null && clip <= 4 * high && (!isLog || clip > 0))
      [low, high] = [Math.min(low, clip), Math.max(high, clip)];
    return padded(low, high, isLog);
  }

  fit() {
    const { width } = this;
    if (!this.uplot) {
      if (this.plot.clientWidth) this.rebuild();
    } else if (this.uplot.width !== width) {
      this.uplot.setSize({ width, height: this.height });
    }
  }

  tell() {
    const { series, isLog } = this.state;
    this.logButton?.setAttribute("aria-pressed", String(isLog));
    if (this.csv) this.tellCsv();
    const key = series.map((each) => `${each.key} ${each.colour} ${this.state.hidden.has(each.key)}`).join("|");
    if (key !== this.legendShown) {
      this.legendShown = key;
      fill(
        this.legend,
        series.length > 16
          ? h("span", { class: "dim" }, `${series.length} curves`)
          : series.map((each) => this.keyOf(each)),
      );
    }
    this.plot.setAttribute("aria-label", this.described());
    this.plot.dataset.columns = Math.max(0, ...series.map((each) => each.curve?.x.length ?? 0));
    this.plot.dataset.raw = String(series.every((each) => each.curve?.raw ?? true));
    this.tellNone();
    this.tellNotes();
    this.follow(this.uplot);
  }

  tellCsv() {
    const { range } = this.state;
    this.csvLink.setAttribute("href", this.csv(null));
    this.csvLink.setAttribute("download", `${fileName(this.name)}.csv`);
    this.rangeLink.hidden = !range;
    if (!range) return;
    this.rangeLink.setAttribute("href", this.csv(range));
    const along = this.state.by === "step" ? "" : `${this.state.by} `;
    this.rangeLink.setAttribute("download", `${fileName(`${this.name} ${along}${range.join("-")}`)}.csv`);
  }

  /** Why the plot is empty, and the way back. */
  tellNone() {
    const { series, visible, isLoaded } = this.state;
    const hasPoints = (each) => Boolean(each.curve?.x.length || each.curve?.bad?.length);
    const view = this.viewX();
    const isEmpty = !visible.some((each) => hasPointIn(each.curve, view) || passesThrough(each.curve, view));
    const told = !isLoaded
      ? "loading …"
      : !series.some(hasPoints)
        ? "nothing logged here"
        : visible.length
          ? `No points between ${this.rangeText(view)}`
          : "All curves are hidden";
    this.none.hidden = !isEmpty;
    const isZoomed = isLoaded && this.state.range && this.onReset;
    const key = `${told} ${isZoomed}`;
    if (key === this.noneShown) return;
    this.noneShown = key;
    const back = isZoomed ? button("Show the whole range", () => this.onReset(), { class: "small" }) : null;
    fill(this.none, h("span", {}, told), back);
  }

  tellNotes() {
    const notes = [this.pointsNote(), this.smoothingNote(), this.fewNote()].filter(Boolean);
    this.notes.hidden = !notes.length;
    this.notes.textContent = notes.join("; ");
  }

  /** Where only lines between points outside of the view are seen. */
  pointsNote() {
    const view = this.viewX();
    const drawn = this.state.visible.filter((each) => each.curve?.x.length);
    const isPassing = drawn.some((each) => passesThrough(each.curve, view));
    return isPassing && !drawn.some((each) => hasPointIn(each.curve, view))
      ? `no points between ${this.rangeText(view)}`
      : "";
  }

  smoothingNote() {
    const window = this.smoothedOver();
    return window ? `smoothed over ${window}, values as logged` : "";
  }

  /** What the strength of the smoothing means in the range in view. */
  smoothedOver() {
    const { visible, smoothing, by } = this.state;
    if (!smoothing || !visible.some((each) => !each.isBand && canBeSmoothed(each.curve))) return "";
    return `${(X_TEXT[by] ?? compact)(smoothingWindow(smoothing, this.viewX()))}${X_UNITS[by] ?? ""}`;
  }

  /** Which curves are not smoothed although that was asked for. */
  fewNote() {
    const { visible, smoothing } = this.state;
    const drawn = visible.filter((each) => each.curve?.x.length && !each.isBand);
    const few = drawn.filter((each) => !canBeSmoothed(each.curve));
    const names = few.length < drawn.length ? `: ${few.map((each) => each.label).join(", ")}` : "";
    return smoothing && few.length ? `too few points to smooth${names}` : "";
  }

  rangeText([low, high]) {
    const unit = this.state.by === "step" ? "" : (X_UNITS[this.state.by] ?? "");
    return `${this.placeText(low)} and ${this.placeText(high)}${unit}`;
  }

  keyOf(each) {
    const swatch = h("span", { class: "swatch", style: { background: `var(--c${each.colour % PALETTE})` } });
    const value = h("span", { class: "value", "data-value": each.key });
    return h(
      "button",
      {
        type: "button",
        class: "key",
        "aria-pressed": String(!this.state.hidden.has(each.key)),
        "data-focus": `key ${each.key}`,
        title: this.state.hidden.has(each.key) ? "Show this curve" : "Hide this curve",
        "aria-label": `Curve ${each.label || this.title}`,
        on: { click: () => this.onToggle?.(each.key) },
      },
      swatch,
      each.label,
      " ",
      value,
      h("span", { class: "where" }),
    );
  }

  described() {
    const parts = this.state.series.slice(0, 8).map(({ label: own, curve }) => {
      const label = own || "the curve";
      const ends = [curve?.last?.find((each) => each !== null), curve?.last?.findLast((each) => each !== null)];
      const lost = curve?.bad?.length ? `, ${plural(curve.bad.length, "non-finite point")}` : "";
      return ends[0] === undefined
        ? `${label}: ${this.state.isLoaded ? "nothing logged" : "loading"}`
        : `${label} from ${number(ends[0])} to ${number(ends[1])}${lost}`;
    });
    return `${this.title}: ${parts.join("; ")}. Arrow keys read values, plus and minus zoom, 0 shows all.`;
  }

  // Cursor, keys, zoom

  /** The values under the cursor, without it the newest in view. Their place stands once where it is the same. */
  follow(u) {
    const left = u?.cursor?.left ?? -1;
    const x = left >= 0 ? u.posToVal(left, "x") : Infinity;
    const found = this.state.series.map((each) => ({ key: each.key, ...this.read(each, x) }));
    const places = new Set(found.filter((each) => each.text).map((each) => each.place));
    for (const { key, text, place } of found) {
      const target = this.legend.querySelector(`[data-value="${CSS.escape(key)}"]`);
      if (!target) continue;
      target.textContent = text;
      target.nextSibling.textContent = text && places.size > 1 ? ` at ${place}` : "";
    }
    this.at.textContent = places.size === 1 ? [...places][0] : left >= 0 ? this.placeText(x) : "";
  }

  placeText(x) {
    return `${this.state.by === "step" ? "step " : ""}${(X_TEXT[this.state.by] ?? compact)(x)}`;
  }

  /** `text` is empty where a curve has no point in view. */
  read({ curve }, x) {
    const at = nearest(curve, x, this.viewX());
    if (at === null) return { text: "", place: "" };
    return { text: valueAt(curve, at, x, (value) => this.text(value)), place: this.placeText(curve.x[at]) };
  }

  press(event) {
    const u = this.uplot;
    if (!u || event.target !== this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.viewX();
    const middle = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (low + high) / 2;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && event.shiftKey) this.zoomTo(low + (by * (high - low)) / 4, high + (by * (high - low)) / 4);
    else if (by) {
      const left = Math.min(
        u.over.clientWidth - 1,
        Math.max(0, (u.cursor.left >= 0 ? u.cursor.left : u.over.clientWidth / 2) + by * 8),
      );
      u.setCursor({ left, top: u.over.clientHeight / 2 });
      const x = u.posToVal(left, "x");
      const told = this.state.series.map((each) => ({ label: each.label || this.title, ...this.read(each, x) }));
      const values = told.map(({ label, text, place }) => (text ? `${label} ${text} at ${place}` : `${label} none`));
      announce(`${this.placeText(x)}: ${values.join(", ")}`);
    } else if (event.key === "+" || event.key === "=")
      this.zoomTo(middle - (high - low) / 4, middle + (high - low) / 4);
    else if (event.key === "-") this.zoomTo(low - (high - low) / 2, high + (high - low) / 2);
    else if (event.key === "0") this.onReset?.();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  zoomTo(low, high) {
    const whole = this.state.extent ?? extentOf(this.state.series, "x") ?? [0, 1];
    const [from, to] = [Math.max(low, whole[0]), Math.min(high, whole[1])];
    if (from <= whole[0] && to >= whole[1]) this.onReset?.();
    else if (to > from) this.onZoom?.(from, to);
  }

  /** Only of the chart that was dragged on: the synchronised ones end their selection too, without an event, when the
   *  scale is already that of the new range. */
  select(u) {
    const { left, width } = u.select;
    const [low, high] = this.viewX();
    const ends = [Math.max(low, u.posToVal(left, "x")), Math.min(high, u.posToVal(left + width, "x"))];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (u.cursor.event && width >= 4) this.onZoom?.(...ends);
  }

  listenToClicks(u) {
    let down = 0;
    u.over.addEventListener("pointerdown", (event) => event.button === 0 && u.over.setPointerCapture(event.pointerId));
    u.over.addEventListener("mousedown", (event) => (down = event.clientX));
    u.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - down) > 3) return;
      const at = event.clientX - u.over.getBoundingClientRect().left;
      const near = (this.state.marks ?? []).filter(
        (mark) => mark.x !== null && Math.abs(u.valToPos(mark.x, "x") - at) <= NEAR,
      );
      if (near.length) this.onMarks?.(near, this.plot, LEFT + at);
    });
  }

  /** What of the picture cannot be seen in it. */
  pictureNotes() {
    const { isLog, smoothing } = this.state;
    const window = this.smoothedOver();
    return [
      this.unit ? `in ${this.unit}` : "",
      isLog ? "logarithmic y axis" : "",
      window ? `thick line: smoothed over ${window} (smoothing ${smoothing})` : "",
    ].filter(Boolean);
  }

  savePicture() {
    const from = this.uplot?.ctx.canvas;
    if (!from) return;
    const ratio = devicePixelRatio || 1;
    const notes = this.pictureNotes().join("; ");
    const head = (notes ? 50 : 34) * ratio;
    const canvas = h("canvas", { width: from.width, height: from.height + head });
    const draw = canvas.getContext("2d");
    draw.fillStyle = colour("paper");
    draw.fillRect(0, 0, canvas.width, canvas.height);
    draw.drawImage(from, 0, head);
    draw.font = `600 ${13 * ratio}px system-ui, sans-serif`;
    draw.fillStyle = colour("ink");
    draw.fillText(this.name, 8 * ratio, 15 * ratio);
    let at = 8 * ratio;
    draw.font = `${11 * ratio}px system-ui, sans-serif`;
    for (const each of this.state.visible.slice(0, 16)) {
      draw.fillStyle = colour(`c${each.colour % PALETTE}`);
      draw.fillRect(at, 25 * ratio, 12 * ratio, 3 * ratio);
      draw.fillText(each.label, at + 16 * ratio, 30 * ratio);
      at += draw.measureText(each.label).width + 34 * ratio;
    }
    draw.fillStyle = colour("dim");
    draw.fillText(notes, 8 * ratio, 46 * ratio);
    canvas.toBlob((blob) => save(`${this.name}.png`, blob), "image/png");
  }

  close() {
    removeEventListener("themechange", this.onTheme);
    this.resized.disconnect();
    this.uplot?.destroy();
  }
}
