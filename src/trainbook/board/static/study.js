// A study: what it found in words, then the pictures, then every trial.

import { get, paced } from "./api.js";
import { button, csv, fill, h, link, save } from "./dom.js";
import { duration, number, plural, setting, toNumber, words } from "./format.js";
import { statusBadge } from "./badges.js";
import { showSections } from "./blocks.js";
import { armCurves, bestSoFar, forest, importance, rates } from "./study_charts.js";
import { parallel } from "./parallel.js";
import { change, params } from "./place.js";

const TOLD_ELSEWHERE = ["Conclusion", "Charts", "All trials", "Verdicts"];

export async function open(context) {
  const page = new StudyPage(context);
  await page.load();
  return page;
}

class StudyPage {
  constructor({ put, id, go }) {
    Object.assign(this, { put, id, go });
    this.brushes = new Map(); // axis path → [low, high] as shares of the axis
    this.reload = paced(() => this.load().catch(() => {}), 3000);
    this.onLive = { runs: (told) => told.changed?.some((run) => run.study === id) && this.reload() };
    this.keys = [
      ["/", "filter the trials", () => this.filter?.focus()],
      ["c", "clear the brushes", () => this.clear()],
    ];
    this.sort = params().get("sort") ?? "loss";
  }

  refresh() {
    this.reload();
  }

  async load() {
    const told = await get(`/api/studies/${encodeURIComponent(this.id)}`);
    const state = JSON.stringify(told);
    if (this.isClosed || state === this.state) return;
    this.state = state;
    this.told = told;
    this.show();
  }

  show() {
    const { told } = this;
    const summary = told.summary ?? {};
    const name = summary.name ?? this.id;
    document.title = `${name} – Trainbook`;
    const lines = told.conclusion ?? [];
    this.chosen = null;
    const charts = [
      forest(told, this.name(name, "effects")),
      rates(told, this.name(name, "rate")),
      bestSoFar(told, this.name(name, "best so far")),
      armCurves(told, this.name(name, "curves")),
      importance(told, this.name(name, "importance")),
    ].filter(Boolean);
    this.parallel = parallel(told, this.name(name, "parallel"), this.brushes, () => this.showTrials());
    if (this.parallel && charts.length % 2 === 0) this.parallel.classList.add("wide");
    this.trials = h("div");
    this.filter = h("input", {
      type: "search",
      "aria-label": "Filter the trials",
      placeholder: "Filter: a word, or loss<2.1",
      value: params().get("q") ?? "",
      on: {
        input: () => {
          change({ q: this.filter.value });
          this.showTrials();
        },
      },
    });
    this.put(
      h("p", { class: "crumbs" }, link("/", "Runs"), " / ", summary.source ?? "", " / ", words(told.kind ?? "study")),
      h("div", { class: "title" }, h("h1", {}, name), statusBadge(summary.status ?? "finished")),
      told.headline && !lines.includes(told.headline) ? h("p", { class: "headline" }, told.headline) : null,
      lines.length
        ? [
            h("p", { class: "headline" }, lines[0]),
            lines.length > 1
              ? h(
                  "ul",
                  {},
                  lines.slice(1).map((line) => h("li", {}, line)),
                )
              : null,
          ]
        : null,
      told.problem ? h("p", { class: "error-text" }, told.problem) : null,
      this.counts(told),
      h(
        "section",
        { class: "section" },
        h("h2", { class: "unseen" }, "Charts"),
        h("div", { class: "grid-2" }, charts, this.parallel),
      ),
      h(
        "div",
        { class: "study-rest" },
        h(
          "section",
          { class: "section", id: "trials", hidden: !told.trials?.length },
          h(
            "div",
            { class: "line spread" },
            h("h2", {}, "Trials"),
            h(
              "span",
              { class: "line" },
              this.filter,
              button("CSV", () => this.save(name), { class: "small" }),
            ),
          ),
          this.trials,
        ),
        h("div", {}, showSections(told.sections ?? [], TOLD_ELSEWHERE), recipe(told.recipe)),
      ),
    );
    this.showTrials();
  }

  name(name, what) {
    return `${name} ${what}`;
  }

  counts({ trials = [], metric }) {
    if (!trials.length) return null;
    const done = trials.filter((trial) => toNumber(trial.loss) !== null).length;
    const seconds = trials.reduce((sum, trial) => sum + (trial.seconds ?? 0), 0);
    const states = new Map();
    for (const trial of trials) states.set(trial.state, (states.get(trial.state) ?? 0) + 1);
    return h(
      "p",
      { class: "dim" },
      [
        plural(trials.length, "trial"),
        `${done} with a result`,
        [...states].map(([state, amount]) => `${amount} ${state}`).join(", "),
        seconds ? `${duration(seconds)} of training` : null,
        metric ? `${words(metric.name)}, ${metric.greater_is_better ? "higher" : "lower"} is better` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    );
  }

  /** The trials that the brushes, the filter and the order leave. */
  visible() {
    const terms = this.filter.value.trim().split(/\s+/).filter(Boolean).map(term);
    const chosen = this.parallel?.passes ?? (() => true);
    const sign = this.told.metric?.greater_is_better ? -1 : 1;
    const isDown = this.sort.startsWith("-");
    const name = isDown ? this.sort.slice(1) : this.sort;
    const key = (trial) => {
      if (name === "loss") return sign * (finite(trial.loss) ?? Infinity * sign);
      return trial.values && name in trial.values ? trial.values[name] : trial[name];
    };
    const all = (this.told.trials ?? []).filter((trial) => chosen(trial) && terms.every((each) => each(trial)));
    return all.sort((a, b) => (isDown ? -1 : 1) * order(key(a), key(b)) || a.number - b.number);
  }

  showTrials() {
    const shown = this.visible();
    const paths = [...new Set((this.told.trials ?? []).flatMap((trial) => Object.keys(trial.values ?? {})))];
    const has = (name) =>
      (this.told.trials ?? []).some((trial) => trial[name] !== null && trial[name] !== undefined && trial[name] !== "");
    const columns = [
      ["number", "trial"],
      ...(has("arm") ? [["arm", "arm"]] : []),
      ["loss", words(this.told.metric?.name ?? "loss")],
      ["state", "state"],
      ...paths.map((path) => [path, path.split(".").at(-1).replaceAll("_", " ")]),
      ...(has("seed") ? [["seed", "seed"]] : []),
      ["seconds", "time"],
      ...(has("reason") ? [["reason", "reason"]] : []),
    ];
    const head = columns.map(([name, title]) =>
      h(
        "th",
        {
          scope: "col",
          "aria-sort": this.orderBy(name),
          title: paths.includes(name) ? name : null,
        },
        button([title, h("span", { class: "arrow", "aria-hidden": "true" })], () => this.sortBy(name), {
          class: "plain dim",
          "data-focus": `sort ${name}`,
        }),
      ),
    );
    const cell = (trial, name) => {
      if (name === "number")
        return trial.id
          ? link(`/run/${encodeURIComponent(trial.id)}`, trial.name ?? `trial ${trial.number}`)
          : String(trial.name ?? trial.number);
      if (name === "loss") return number(trial.loss);
      if (name === "seconds") return duration(trial.seconds);
      if (name === "state")
        return [
          trial.state,
          trial.kind && trial.kind !== "search" ? h("span", { class: "dim" }, ` ${trial.kind}`) : null,
        ];
      const value = trial.values && name in trial.values ? trial.values[name] : trial[name];
      return value === undefined || value === null
        ? ""
        : setting(typeof value === "number" ? Number(value.toPrecision(4)) : value);
    };
    fill(
      this.trials,
      h(
        "p",
        { class: "dim", role: "status" },
        shown.length === this.told.trials?.length
          ? ""
          : `${shown.length} of ${plural(this.told.trials?.length ?? 0, "trial")}`,
      ),
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": "Trials" },
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, head)),
          h(
            "tbody",
            {},
            shown.slice(0, 500).map((trial) =>
              h(
                "tr",
                {},
                columns.map(([name], at) => h(at ? "td" : "th", { scope: at ? null : "row" }, cell(trial, name))),
              ),
            ),
          ),
        ),
      ),
      shown.length > 500 ? h("p", { class: "dim" }, `and ${shown.length - 500} more: filter them, or save the CSV`) : null,
    );
  }

  /** The loss is sorted from the best on, which is the highest of some metrics. */
  orderBy(name) {
    if (![name, `-${name}`].includes(this.sort)) return "none";
    const isFromHighest = name === "loss" && Boolean(this.told.metric?.greater_is_better);
    return this.sort.startsWith("-") === isFromHighest ? "ascending" : "descending";
  }

  sortBy(name) {
    this.sort = this.sort === name ? `-${name}` : name;
    change({ sort: this.sort === "loss" ? null : this.sort });
    this.showTrials();
  }

  clear() {
    this.brushes.clear();
    this.parallel?.redraw();
    this.showTrials();
  }

  save(name) {
    const paths = [...new Set(this.told.trials.flatMap((trial) => Object.keys(trial.values ?? {})))];
    const rows = this.visible().map((trial) => [
      trial.number,
      trial.name,
      trial.arm,
      trial.kind,
      trial.state,
      trial.loss,
      trial.seed,
      trial.seconds,
      ...paths.map((path) => trial.values?.[path]),
    ]);
    save(
      `${name}-trials.csv`,
      csv(
        ["number", "name", "arm", "kind", "state", this.told.metric?.name ?? "loss", "seed", "seconds", ...paths],
        rows,
      ),
      "text/csv",
    );
  }

  close() {
    this.isClosed = true;
  }
}

function recipe(text) {
  if (!text) return null;
  const listing = h("pre", { tabindex: 0, "aria-label": "Recipe" }, text);
  return h("details", { class: "section" }, h("summary", {}, h("h2", {}, "Recommended recipe")), listing);
}

function finite(value) {
  const known = toNumber(value);
  return Number.isFinite(known) ? known : null;
}

function order(a, b) {
  if (a === b || (a === undefined && b === undefined)) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1;
}

/** `loss<2.1`, `learning_rate>=1e-3` or a word. */
function term(text) {
  const found = /^([\w.]+)(<=|>=|!=|<|>|=|:)(.+)$/.exec(text);
  if (!found) return (trial) => JSON.stringify(trial).toLowerCase().includes(text.toLowerCase());
  const [, name, sign, wanted] = found;
  return (trial) => {
    const key = Object.keys(trial.values ?? {}).find((path) => path === name || path.endsWith(`.${name}`));
    const value = key ? trial.values[key] : trial[name];
    const [left, right] =
      typeof value === "number" && wanted !== "" && Number.isFinite(Number(wanted))
        ? [value, Number(wanted)]
        : [String(value), wanted];
    return (
      {
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
        "!=": left !== right,
        "=": left === right,
        ":": String(left).includes(String(right)),
      }[sign] &&
      value !== undefined &&
      value !== null
    );
  };
}
