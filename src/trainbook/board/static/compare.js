// Several runs on each other: curves, mean and band over seeds, what differs in the configuration, and what the
// difference means.

import { address, get, paced } from "./api.js";
import { button, fill, h, link, table } from "./dom.js";
import { capitalized, compact, count, duration, number, plural, setting, words } from "./format.js";
import { Chart } from "./chart.js";
import { CurveView } from "./curve_view.js";
import { openKnob } from "./panel.js";
import { change, params } from "./place.js";
import { groupName } from "./run_order.js";
import { metricName } from "./run_rows.js";
import { PALETTE } from "./scale.js";

export async function open(context) {
  const page = new ComparePage(context);
  await page.load();
  return page;
}

class ComparePage {
  constructor({ put, go }) {
    Object.assign(this, { put, go });
    this.view = new CurveView(
      (what) => this.changed(what),
      () => this.told?.curves?.find((curve) => curve.step?.length > 1),
    );
    this.reload = paced(() => this.load().catch((error) => (this.error.textContent = error.message)), 1500);
    this.onLive = { runs: (told) => told.changed?.some((run) => this.ids.includes(run.id)) && this.reload() };
    this.keys = [
      ["/", "add a run", () => this.adder.focus()],
      ["b", "next x axis: steps, tokens, time, FLOPs", () => this.nextBy()],
      ["r", "whole range", () => this.view.reset()],
      ["G", "mean and band over seeds", () => this.turnGroup()],
    ];
    this.read();
    this.build();
  }

  read() {
    const place = params();
    this.ids = [...new Set(place.getAll("run"))];
    this.metric = place.get("metric");
    this.isGrouped = place.has("group");
    this.view.read();
  }

  build() {
    this.names = h("datalist", { id: "all-runs" });
    this.adder = h("input", {
      type: "search",
      id: "add",
      list: "all-runs",
      placeholder: "Add a run",
      autocomplete: "off",
      "aria-label": "Add a run by its name",
      on: { change: () => this.addByName() },
    });
    this.choice = h("select", { id: "metric", on: { change: () => this.setMetric(this.choice.value) } });
    this.group = h(
      "button",
      { type: "button", class: "toggle", on: { click: () => this.turnGroup() } },
      "Mean and band over seeds",
    );
    this.error = h("p", { class: "error-text", role: "alert" });
    this.statistics = h("div", { class: "section" });
    this.runs = h("div");
    this.rest = h("div");
    this.chart = new Chart({
      title: "Curves",
      name: "compare",
      height: 380,
      isWide: true,
      csv: (range) => this.csvAddress(range),
      onZoom: (from, to) => this.view.zoom(from, to),
      onReset: () => this.view.reset(),
      onLog: () => this.view.turnLog("compare", false),
      onToggle: (key) => this.view.turnCurve(key),
    });
    this.put(
      h("p", { class: "crumbs" }, link("/", "Runs"), " / compare"),
      h("div", { class: "title" }, h("h1", {}, "Compare"), this.adder, this.names),
      this.error,
      this.statistics,
      h(
        "section",
        { class: "section" },
        h("h2", { class: "unseen" }, "Curves"),
        this.view.tools(undefined, h("label", { for: "metric" }, "Metric ", this.choice), this.group),
        h("div", { class: "charts" }, this.chart.element),
      ),
      this.runs,
      this.rest,
    );
    this.listRuns();
  }

  async listRuns() {
    const told = await get("/api/runs").catch(() => ({ runs: [] }));
    this.known = told.runs;
    fill(
      this.names,
      told.runs.slice(0, 2000).map((run) => h("option", { value: run.name })),
    );
  }

  addByName() {
    const run = this.known?.find((each) => each.name === this.adder.value);
    if (!run) return;
    this.adder.value = "";
    this.setRuns([...new Set([...this.ids, run.id])]);
  }

  setRuns(ids) {
    change({ run: ids });
    this.read();
    this.reload();
  }

  update() {
    this.read();
    return this.load();
  }

  refresh() {
    this.reload();
  }

  async load() {
    if (this.ids.length < 2) return this.askForMore();
    const { by } = this.view;
    const asked = this.question();
    const question = {
      run: this.ids,
      metric: this.metric,
      by,
      ...this.view.asked,
      group: this.isGrouped ? 1 : null,
      width: Math.ceil(this.chart.columns / 50) * 50,
    };
    if (!this.told) fill(this.statistics, computing(`Computing the curves of ${plural(this.ids.length, "run")} …`));
    const told = await get("/api/compare", { ...question, statistics: 0 }).catch((error) => {
      if (!this.told) fill(this.statistics);
      if (!error.status || error.asksForToken) throw error;
      this.error.textContent = error.message;
      return null;
    });
    if (!told || this.isClosed) return;
    if (asked !== this.question()) return this.reload();
    this.view.place(told.view);
    this.error.textContent = "";
    this.told = { ...told, statistics: this.told?.statistics };
    this.show();
    this.loadStatistics(question);
  }

  question() {
    return JSON.stringify([this.ids, this.metric, this.view.by, this.view.asked, this.isGrouped]);
  }

  /** After the curves: of many long runs they take seconds. They do not depend on the range in view. */
  async loadStatistics({ run, metric, by }) {
    const asked = JSON.stringify([run, metric, by]);
    if (asked !== this.statisticsOf) this.told.statistics = null;
    this.statisticsOf = asked;
    const told = await get("/api/compare", { run, metric, by, statistics: "only" }).catch((error) => ({
      statistics: { conclusion: error.message },
    }));
    if (this.isClosed || asked !== this.statisticsOf || !this.told) return;
    this.told.statistics = withGroupNames(told.statistics ?? {});
    this.show();
  }

  askForMore() {
    this.told = null;
    fill(this.statistics);
    this.chart.show({ series: [], isLoaded: true });
    fill(
      this.rest,
      h(
        "p",
        { class: "empty" },
        this.ids.length
          ? "Add another run by its name, above. "
          : "Choose runs on the page of all runs, or add them by name, above. ",
        link("/", "All runs"),
      ),
    );
    fill(this.runs);
  }

  changed(what) {
    this.view.showTools();
    if (what === "range" || what === "by") {
      this.extent = null;
      this.reload();
    }
    if (this.told) this.show();
  }

  show() {
    const { told } = this;
    this.group.setAttribute("aria-pressed", String(this.isGrouped));
    const names = (told.metrics ?? []).map((each) => each.name);
    const now = this.metric ?? told.metric ?? told.curves?.[0]?.metric ?? names[0];
    const nameOf = (name) => (names.includes(`eval:${name}`) ? `training ${metricName(name)}` : metricName(name));
    fill(
      this.choice,
      names.map((name) => h("option", { value: name }, nameOf(name))),
    );
    this.choice.value = now ?? "";
    const series = this.seriesOf(told);
    if (!this.view.range && told.range) this.extent = this.view.extent = told.range;
    this.chart.element.querySelector("h3").textContent = capitalized(nameOf(now ?? ""));
    this.chart.name = `compare ${nameOf(now ?? "")}`;
    this.chart.show({
      series,
      by: this.view.by,
      range: this.view.range,
      view: this.view.range ?? this.extent,
      extent: this.extent,
      smoothing: this.view.smoothing,
      hidden: this.view.hidden,
      isLog: this.view.isLog("compare", false),
      marks: [],
      isLoaded: true,
    });
    this.showRuns(told);
    fill(this.statistics, told.statistics ? statistics(told.statistics) : computing("Computing the statistics …"));
    fill(this.rest, this.differences(told), statisticsTables(told.statistics));
    document.title = `Compare ${plural(this.ids.length, "run")} – Trainbook`;
  }

  /** A colour for each group, so that the seeds of one belong together. */
  seriesOf({ curves = [], bands = [] }) {
    const groups = [...new Set(curves.map((each) => each.group ?? each.run))];
    this.colours = new Map(
      curves.map((each, at) => [each.run, this.isGrouped ? groups.indexOf(each.group ?? each.run) : at]),
    );
    const isBanded = new Set(
      this.isGrouped ? bands.filter((each) => each.runs.length > 1).map((each) => each.group) : [],
    );
    const inBand = new Set(bands.filter((each) => isBanded.has(each.group)).flatMap((each) => each.runs));
    const single = curves
      .filter((each) => !inBand.has(each.run))
      .map((each) => ({
        key: each.run,
        label: each.name,
        colour: this.colours.get(each.run),
        curve: each,
        isThin: curves.length > 12,
      }));
    const banded = bands
      .filter((each) => isBanded.has(each.group))
      .map((each) => ({
        key: `band ${each.group}`,
        label: `${each.name}, mean of ${each.runs.length}`,
        colour: groups.indexOf(each.group),
        isBand: true,
        curve: { ...each, isBand: true, last: each.mean },
      }));
    return [...banded, ...single];
  }

  showRuns({ curves = [], statistics: found }) {
    const facts = new Map((found?.runs ?? []).map((each) => [each.name, each]));
    const rows = curves.map((each) => {
      const own = facts.get(each.name) ?? {};
      const swatch = h(
        "span",
        { class: "key" },
        h("span", { class: "swatch", style: { background: `var(--c${(this.colours.get(each.run) ?? 0) % PALETTE})` } }),
        link(`/run/${encodeURIComponent(each.run)}`, each.name),
      );
      return [
        swatch,
        own.seed ?? "",
        own.status ?? "",
        count(own.steps),
        compact(own.tokens),
        duration(own.seconds),
        own.is_lost ? "not finite" : number(own.final),
        own.best === null || own.best === undefined ? "" : `${number(own.best)} at ${placeText(own.best_at)}`,
        button("Remove", () => this.setRuns(this.ids.filter((id) => id !== each.run)), {
          class: "small quiet",
          "aria-label": `Remove ${each.name} from the comparison`,
        }),
      ];
    });
    fill(
      this.runs,
      h(
        "section",
        { class: "section" },
        h("h2", {}, "Runs"),
        table(["run", "seed", "status", "steps", "tokens", "time", "final", "best", ""], rows, {
          caption: "Final and best values of the metric",
          numeric: [1, 3, 4, 5, 6, 7],
        }),
      ),
    );
  }

  differences({ differences = [], curves = [] }) {
    const title = h("h2", {}, "What differs in the configuration");
    if (!differences.length)
      return h(
        "section",
        { class: "section" },
        title,
        h("p", { class: "dim" }, "No known setting differs."),
      );
    const rows = differences.map(({ path, values }) => [
      button(path, () => openKnob(path), { class: "plain" }),
      ...values.map((value) =>
        value === null || value === undefined ? h("span", { class: "dim" }, "unknown") : h("code", {}, setting(value)),
      ),
    ]);
    return h(
      "section",
      { class: "section" },
      title,
      table(["knob", ...curves.map((each) => each.name)], rows, {
        caption: "Settings that are the same in all runs are left out",
      }),
    );
  }

  setMetric(metric) {
    this.metric = metric;
    change({ metric });
    this.extent = null;
    this.reload();
  }

  turnGroup() {
    this.isGrouped = !this.isGrouped;
    change({ group: this.isGrouped });
    this.reload();
  }

  nextBy() {
    const ways = ["step", "tokens", "time", "flops"];
    this.view.setBy(ways[(ways.indexOf(this.view.by) + 1) % ways.length]);
  }

  /** All points of the curves, or of the range in view. */
  csvAddress(range) {
    const [from, to] = range ?? [null, null];
    const metric = this.metric ?? this.told?.metric;
    return address("/api/compare/curves.csv", { run: this.ids, metric, by: this.view.by, from, to });
  }

  close() {
    this.isClosed = true;
    this.chart.close();
  }
}

/** Steps as a whole number; tokens, seconds and epochs shorter. */
function placeText(value) {
  return Number.isInteger(value) && value < 1e7 ? count(value) : compact(value);
}

function computing(text) {
  return h("p", { class: "dim", role: "status" }, text);
}

/** In all sentences a group of seeds is called as in the legend and in the list of runs. */
function withGroupNames(found) {
  const groups = (found.groups ?? []).filter((each) => each.runs.length > 1);
  const inText = (text) => JSON.stringify(text).slice(1, -1);
  const text = groups.reduce(
    (all, { name, runs }) => all.replaceAll(inText(name), () => inText(groupName(runs))),
    JSON.stringify(found),
  );
  return JSON.parse(text);
}

function statistics(found) {
  const lines = [found.conclusion].flat().filter(Boolean);
  return [
    lines.map((line) => h("p", { class: "headline" }, line)),
    found.remarks?.length
      ? h(
          "details",
          { open: found.remarks.length < 4 },
          h("summary", {}, "Remarks"),
          h(
            "ul",
            {},
            found.remarks.map((line) => h("li", {}, `${line}.`)),
          ),
        )
      : null,
  ];
}

function statisticsTables(found) {
  if (!found?.comparisons?.length) return null;
  const signed = (value) => (value > 0 ? "+" : "") + number(value);
  const rows = found.comparisons.map((each) => [
    `${each.other} minus ${each.reference}`,
    placeText(each.at),
    signed(each.difference),
    each.interval ? `${signed(each.interval[0])} to ${signed(each.interval[1])}` : `unknown: ${each.why_no_interval}`,
    each.pairs ?? "",
    each.p_corrected === null || each.p_corrected === undefined ? "" : each.p_corrected.toPrecision(2),
  ]);
  const groups = (found.groups ?? [])
    .filter((each) => each.runs.length > 1)
    .map((each) => [
      each.name,
      each.runs.length,
      number(each.mean),
      number(each.standard_deviation),
      `${words(found.by ?? "step")} ${found.by === "epochs" ? number(each.at) : count(Math.round(each.at))}`,
    ]);
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Statistics"),
    table(
      [
        "difference",
        `at ${words(found.by ?? "step")}`,
        words(found.metric ?? ""),
        "95 % interval",
        "pairs",
        "p, corrected",
      ],
      rows,
      {
        caption:
          "Against the first run or group, at the same point; paired by seed where both sides have the same seeds",
        numeric: [1, 2, 4, 5],
      },
    ),
    groups.length
      ? table(["setting", "runs", "mean", "standard deviation", "at"], groups, {
          caption: `Over seeds: ${words(found.metric ?? "")} at the end of the shortest run of each setting`,
          numeric: [1, 2, 3],
        })
      : null,
  );
}
