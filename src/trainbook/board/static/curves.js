// The curves of a run: charts by group of metrics, asked for when they come into view and again after a zoom.

import { address, get, paced, runPath } from "./api.js";
import { button, fill, h } from "./dom.js";
import { capitalized, words } from "./format.js";
import { icon } from "./badges.js";
import { Chart } from "./chart.js";
import { MARK_NAMES, showMarks } from "./chart_marks.js";
import { BY, CurveView, placeOf } from "./curve_view.js";
import { change, params } from "./place.js";

const FIRST = [
  "loss",
  "learning_rate",
  "grad_norm",
  "tokens_per_second",
  "memory_bytes",
  "loss_scale",
  "gpu_utilisation",
];
const ASIDE = ["seconds", "epoch", "tokens", "targets", "best"]; // of an evaluation: no result
const QUIET = ["checkpoint"]; // kinds of marks that are shown on demand
const PAUSE = 700; // milliseconds between two questions while a run goes on
const PAUSE_OUT_OF_VIEW = 4000; // of charts that are not in view: their newest values are

export class RunCurves {
  constructor({ id, name, host, onFinding }) {
    Object.assign(this, { id, name, host, onFinding });
    this.charts = new Map(); // group → {chart, metrics, group, isStale, isSeen, answers}
    this.marks = [];
    this.extent = null;
    this.view = new CurveView(
      (what) => this.changed(what),
      () => this.ruler(),
    );
    this.ask = paced(() => this.load(), PAUSE);
    this.seen = new IntersectionObserver((entries) => this.see(entries), { rootMargin: "250px" });
    this.kinds = h("span", { class: "line", role: "group", "aria-label": "Marks" });
    this.error = h("p", { class: "error-text", role: "alert" });
    this.main = h("div", { class: "charts" });
    this.more = h("div", { class: "charts" });
    this.layers = h("div", { class: "charts" });
    this.moreFold = folded("More curves", this.more);
    this.layersFold = folded("By layer, process or offset", this.layers);
    this.toolsHost = h("div", { class: "tools-host" });
    fill(host, this.toolsHost, this.error, this.main, this.moreFold, this.layersFold);
    this.shownKinds = new Set(params().getAll("marks"));
    this.hiddenKinds = new Set(params().getAll("nomarks"));
  }

  /** What the run has: new metrics get a chart, known ones stay. */
  tell({ metrics, marks, findings, clip, axes }) {
    this.showTools(axes);
    this.marks = marks ?? [];
    this.numFindings = findings?.length ?? 0;
    this.clip = clip ?? null;
    const groups = new Map();
    for (const metric of metrics) {
      if (!groups.has(metric.group)) groups.set(metric.group, []);
      groups.get(metric.group).push(metric);
    }
    const sorted = [...groups].sort(([, a], [, b]) => rank(a) - rank(b));
    for (const [group, own] of sorted) {
      const known = this.charts.get(group);
      if (known && known.metrics.length === own.length) continue;
      if (known) this.remove(known);
      this.add(group, own);
    }
    this.arrange(sorted.map(([group]) => this.charts.get(group).chart.element));
    if (!groups.size)
      fill(
        this.main,
        h("p", { class: "empty" }, "No metrics have been logged yet. The first values appear here by themselves."),
      );
    setTimeout(() => this.ask(), 300); // by then it is known which are in view
    this.nameFolds();
    this.showKinds();
    for (const each of this.charts.values()) this.show(each);
  }

  /** In the same order, whichever curves the run had when the page was opened. */
  arrange(elements) {
    for (const host of [this.main, this.more, this.layers]) {
      const own = elements.filter((each) => each.parentNode === host);
      own.forEach((each, at) => host.children[at] !== each && host.insertBefore(each, host.children[at]));
    }
  }

  nameFolds() {
    for (const [fold, title] of [
      [this.moreFold, "More curves"],
      [this.layersFold, "By layer, process or offset"],
    ]) {
      fold.hidden = !fold.querySelector(".chart");
      fold.firstChild.textContent = `${title} (${fold.querySelectorAll(".chart").length})`;
    }
  }

  add(group, metrics) {
    if (!this.charts.size) this.main.replaceChildren();
    const place = rank(metrics);
    const isFirst = place === 0;
    const advised = metrics.some((metric) => metric.is_log);
    const unit = metrics[0].unit && !["name", "count", "flag"].includes(metrics[0].unit) ? metrics[0].unit : "";
    const chart = new Chart({
      title: capitalized(words(group)),
      name: `${this.name} ${words(group)}`,
      height: isFirst ? 300 : 170,
      unit,
      isWide: isFirst,
      withMarks: isFirst,
      sync: this.id,
      csv: (range) => this.csvAddress(metrics, range),
      onZoom: (from, to) => this.view.zoom(from, to),
      onReset: () => this.view.reset(),
      onLog: () => this.view.turnLog(group, advised),
      onToggle: (key) => this.view.turnCurve(key),
    });
    chart.onMarks = (marks, host, left) =>
      showMarks(marks, host, left, {
        onZoom: (first, last) => this.zoomToSteps(first, last),
        onFinding: this.onFinding,
      });
    chart.element.dataset.group = group;
    const entry = { chart, metrics, group, advised, isStale: true, isSeen: false, answers: [] };
    this.charts.set(group, entry);
    const host = metrics[0].per ? this.layers : place < OTHERS ? this.main : this.more;
    host.append(chart.element);
    this.seen.observe(chart.element);
  }

  /** Of all points, or of those within a range. */
  csvAddress(metrics, range) {
    const [from, to] = range ?? [null, null];
    const by = this.view.by === "step" ? null : this.view.by;
    return address(runPath(this.id, "/curves.csv"), { metric: metrics.map((metric) => metric.name), by, from, to });
  }

  /** The ways that the run knows; a watched loop may count no tokens. */
  showTools(axes) {
    const ways = Object.keys(BY).filter((by) => !axes || axes.includes(by));
    if (ways.join() === this.waysShown) return;
    this.waysShown = ways.join();
    fill(this.toolsHost, this.view.tools(ways, this.kinds));
  }

  remove(entry) {
    this.seen.unobserve(entry.chart.element);
    entry.chart.close();
    entry.chart.element.remove();
    this.charts.delete(entry.group);
  }

  see(entries) {
    for (const { target, isIntersecting } of entries) {
      const entry = this.charts.get(target.dataset.group);
      if (entry) entry.isSeen = isIntersecting;
    }
    if ([...this.charts.values()].some((each) => each.isSeen && each.isStale)) this.ask();
  }

  /** The files grew, or the server is back. */
  refresh() {
    for (const each of this.charts.values()) each.isStale = true;
    this.ask();
  }

  changed(what) {
    this.view.showTools();
    if (what === "range" || what === "by") {
      if (what === "by") this.extent = null;
      for (const each of this.charts.values()) {
        each.isStale = true;
        if (what === "by") each.answers = [];
      }
      this.version = {};
      this.ask();
    }
    for (const each of this.charts.values()) this.show(each);
  }

  /** Charts in view; after them those that would be empty when somebody scrolls down or prints; now and then the
   *  others, for the values beside their titles. */
  wanted() {
    const stale = [...this.charts.values()].filter((each) => each.isStale);
    const seen = stale.filter((each) => each.isSeen);
    if (seen.length) return seen;
    const fresh = stale.filter((each) => !each.answers.length && each.chart.element.parentNode === this.main);
    if (fresh.length) return fresh;
    const others = stale.filter((each) => each.chart.element.checkVisibility());
    if (!others.length) return [];
    const rest = (this.askedOthersAt ?? -Infinity) + PAUSE_OUT_OF_VIEW - performance.now();
    if (rest <= 0) {
      this.askedOthersAt = performance.now();
      return others;
    }
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.ask(), rest);
    return [];
  }

  async load() {
    if (this.isClosed) return;
    const wanted = this.wanted();
    if (!wanted.length) return;
    const { by, asked } = this.view;
    const version = this.version;
    const width = Math.ceil(Math.max(...wanted.map((each) => each.chart.columns)) / 50) * 50;
    wanted.forEach((each) => (each.isStale = false));
    let told;
    try {
      told = await get(runPath(this.id, "/curves"), {
        metric: wanted.flatMap((each) => each.metrics.map((metric) => metric.name)),
        by,
        ...asked,
        width,
      });
      this.error.textContent = "";
    } catch (error) {
      wanted.forEach((each) => (each.isStale = true));
      if (error.status) this.error.textContent = error.message; // without a status the page's notice tells it
      return;
    }
    if (version !== this.version || this.isClosed) return this.ask();
    if (told.range) this.extent = this.view.extent = told.range;
    this.view.place(told.view);
    const curves = new Map(told.curves.map((curve) => [curve.metric, curve]));
    for (const each of wanted) {
      each.answers = each.metrics.map((metric) => curves.get(metric.name) ?? null);
      this.show(each);
    }
    if ([...this.charts.values()].some((each) => each.isStale)) this.ask();
  }

  show(entry) {
    const { by, range, smoothing, hidden } = this.view;
    const many = entry.metrics.length > 4;
    const series = entry.metrics.map((metric, at) => ({
      key: metric.name,
      label: nameIn(metric, entry.metrics),
      colour: colourOf(metric, at),
      curve: entry.answers[at],
      isThin: many,
    }));
    const ruler = this.ruler();
    const marks = this.visibleMarks().map((mark) => ({
      ...mark,
      x: placeOf(mark.first ?? mark.step, by, ruler),
      until: mark.last === null || mark.last === undefined ? null : placeOf(mark.last, by, ruler),
    }));
    const view = range ?? this.extent;
    entry.chart.show({
      series,
      marks,
      by,
      view,
      range,
      extent: this.extent,
      smoothing,
      hidden,
      isLoaded: entry.answers.length > 0,
      clip: entry.metrics.some((metric) => metric.name === "grad_norm") ? this.clip : null,
      isLog: this.view.isLog(entry.group, entry.advised),
    });
  }

  /** A curve that names its steps. */
  ruler() {
    return [...this.charts.values()].flatMap((each) => each.answers).find((curve) => curve?.step?.length > 1);
  }

  visibleMarks() {
    return this.marks.filter((mark) =>
      QUIET.includes(mark.kind) ? this.shownKinds.has(mark.kind) : !this.hiddenKinds.has(mark.kind),
    );
  }

  showKinds() {
    const counts = new Map();
    for (const mark of this.marks) counts.set(mark.kind, (counts.get(mark.kind) ?? 0) + (mark.count ?? 1));
    const isOn = (kind) => (QUIET.includes(kind) ? this.shownKinds.has(kind) : !this.hiddenKinds.has(kind));
    fill(
      this.kinds,
      [...counts].map(([kind, amount]) =>
        h(
          "button",
          {
            type: "button",
            class: "toggle small",
            "aria-pressed": String(isOn(kind)),
            "data-focus": `kind ${kind}`,
            title: this.kindTitle(kind, amount, isOn(kind)),
            on: { click: () => this.turnKind(kind) },
          },
          icon(kind, 12),
          ` ${MARK_NAMES[kind] ?? words(kind)} ${this.amountText(kind, amount)}`,
        ),
      ),
    );
  }

  /** Some findings speak of the whole run and have no step. */
  amountText(kind, amount) {
    return kind === "finding" && amount < this.numFindings ? `${amount} of ${this.numFindings}` : amount;
  }

  kindTitle(kind, amount, isOn) {
    const more = kind === "finding" && amount < this.numFindings ? ". The other findings have no step" : "";
    return `${isOn ? "Hide" : "Show"} these marks: ${MARK_NAMES[kind] ?? kind}${more}`;
  }

  turnKind(kind) {
    const own = QUIET.includes(kind) ? this.shownKinds : this.hiddenKinds;
    own[own.has(kind) ? "delete" : "add"](kind);
    change({ marks: [...this.shownKinds], nomarks: [...this.hiddenKinds] });
    this.showKinds();
    for (const each of this.charts.values()) this.show(each);
  }

  /** A range with room around it; along steps only, which is what findings and marks are given in. */
  zoomToSteps(first, last) {
    const whole = this.extent ?? [first - 50, last + 50];
    if (this.view.by !== "step") this.view.setBy("step");
    const around = Math.max(10, 0.6 * (last - first), first === last ? 0.02 * (whole[1] - whole[0]) : 0);
    this.view.zoom(Math.max(0, first - around), last + around);
    this.host.scrollIntoView({ block: "start" });
  }

  readPlace() {
    this.view.read();
    this.changed("range");
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.waiting);
    this.seen.disconnect();
    for (const each of this.charts.values()) each.chart.close();
  }
}

const OTHERS = 100;

/** Where a chart stands: what is looked at first, then results of evaluations, then the rest. */
function rank(metrics) {
  if (metrics[0].per) return OTHERS + 1;
  const places = metrics.map((metric) => {
    const name = metric.name.replace(/^eval:/, "");
    const at = FIRST.indexOf(name);
    if (at === 0 || (at > 0 && metric.split !== "eval")) return at ? 20 + at : 0;
    return metric.split === "eval" && !ASIDE.includes(name) ? 10 : OTHERS;
  });
  return Math.min(...places);
}

function folded(title, content) {
  return h("details", { class: "section", hidden: true }, h("summary", {}, title), content);
}

function nameIn(metric, all) {
  if (all.length === 1) return "";
  if (metric.per) return words(metric.name.slice(metric.name.indexOf(":") + 1));
  if (all.length === 2 && all[0].split !== all[1].split) return metric.split === "eval" ? "validation" : "training";
  return words(metric.title ?? metric.name);
}

/** Training is always the first colour, validation the second. */
function colourOf(metric, at) {
  if (metric.per) return at;
  return at < 2 ? (metric.split === "eval" ? 1 : 0) : at;
}
