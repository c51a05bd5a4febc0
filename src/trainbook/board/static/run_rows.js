// A row of the runs page: one run, or several that differ in the seed alone.

import { button, h, svg } from "./dom.js";
import { ago, compactSetting, count, duration, number, plural, setting, when, words } from "./format.js";
import { findingCounts, statusBadge } from "./badges.js";
import { counting, groupMetric, groupName, telling } from "./run_order.js";
import { spark } from "./spark.js";

export const COLUMNS = [
  { name: "pick", title: "" },
  { name: "name", title: "Name", sort: "name" },
  { name: "state", title: "Status", sort: "status" },
  { name: "progress", title: "Progress", sort: "progress", isDescendingFirst: true },
  { name: "metric", title: "Best metric", sort: "metric" },
  { name: "spark", title: "Loss", sort: "loss" },
  { name: "findings", title: "Findings", sort: "findings", isDescendingFirst: true },
  { name: "settings", title: "Settings that vary" },
  { name: "updated", title: "Updated", sort: "updated", isDescendingFirst: true },
];

export function headRow(page) {
  const cell = (each) =>
    each.sort
      ? h(
          "div",
          { role: "columnheader", class: each.name, "data-sort": each.sort },
          button(
            [each.title, h("span", { class: "arrow", "aria-hidden": "true" })],
            () => page.turnSort(each.sort, each.isDescendingFirst),
            { class: "plain" },
          ),
        )
      : h("div", { role: "columnheader", class: each.name }, each.title || h("span", { class: "unseen" }, "Choose"));
  return h(
    "div",
    { role: "rowgroup", class: "rows-head" },
    h("div", { role: "row", class: "row head", "aria-rowindex": 1 }, COLUMNS.map(cell)),
  );
}

function cell(name, ...content) {
  return h("div", { role: "cell", class: name }, content);
}

export function runRow(item, page) {
  const { run } = item;
  const isHidden = page.hidden.has(run.id);
  return h(
    "div",
    {
      role: "row",
      class: `row ${item.depth ? "inner" : ""} ${page.chosen.has(run.id) ? "chosen" : ""} ${isHidden ? "faint" : ""}`,
    },
    cell("pick", checkbox(item, page, run.name)),
    cell(
      "name",
      h(
        "a",
        { href: `/run/${encodeURIComponent(run.id)}`, "data-focus": "name", class: "run-name", title: run.name },
        run.name,
      ),
      page.pinned.has(run.id)
        ? h("span", { class: "pin", title: "Pinned" }, pinIcon(), h("span", { class: "unseen" }, "pinned"))
        : null,
      run.remedy_of
        ? h(
            "a",
            {
              href: `/run/${encodeURIComponent(run.remedy_of.run)}`,
              "data-focus": "tried on",
              title: `The result of the remedy is on the page of ${run.remedy_of.name}`,
              class: "dim",
            },
            " original run",
          )
        : null,
      (run.tags ?? []).map((tag) => h("span", { class: "tag" }, tag)),
      run.faults?.length ? h("span", { class: "dim", title: run.faults.join(", ") }, " injected faults") : null,
      run.notices?.length ? h("span", { class: "severity plain warning", title: run.notices.join("\n") }, " notice") : null,
      run.note ? h("span", { class: "note", title: run.note }, run.note) : null,
    ),
    cell(
      "state",
      statusBadge(run.status),
      run.guard
        ? h("span", { class: "dim", title: `The guard intervened ${plural(run.guard, "time")}` }, ` guard ${run.guard}`)
        : null,
    ),
    cell("progress", progress(run)),
    cell("metric", metric(run)),
    cell("spark", run.spark?.length ? spark([run]) : null),
    cell("findings", findingCounts(run)),
    cell("settings", settings(run, page)),
    cell("updated", h("span", { class: "dim", title: when(run.updated) }, ago(run.updated ?? run.started))),
  );
}

export function groupRow(item, page) {
  const found = groupMetric(item.runs);
  const hidden = item.runs.length - item.shown.length;
  const seeds = counting(item.runs);
  const numRepeats = item.runs.length - seeds.length;
  const repeats = numRepeats ? plural(numRepeats, "repeat") : "";
  const told = [plural(seeds.length, "seed"), repeats, hidden ? `${hidden} hidden` : ""].filter(Boolean).join(", ");
  const name = seeds[0].group_name ?? groupName(seeds.map((run) => run.name));
  const ids = item.runs.map((run) => `run=${encodeURIComponent(run.id)}`).join("&");
  return h(
    "div",
    { role: "row", class: "row group" },
    cell("pick", checkbox(item, page, name)),
    cell(
      "name",
      button(
        [h("span", { class: "fold", "aria-hidden": "true" }, item.isOpen ? "▾" : "▸"), name],
        () => page.openGroup(item.key),
        { class: "plain run-name", title: name, "aria-expanded": String(item.isOpen), "data-focus": "name" },
      ),
      h("span", { class: "tag" }, told),
    ),
    cell("state", statusCounts(item.runs)),
    cell(
      "progress",
      h("span", { class: "dim", title: stepsOfEach(item.runs) }, stepsOfGroup(item.runs)),
    ),
    cell(
      "metric",
      found
        ? [
            h(
              "span",
              { class: "value" },
              number(found.mean),
              found.spread === null ? "" : ` ± ${found.spread.toFixed(4)}`,
            ),
            h("span", { class: "dim" }, ` ${metricName(`eval:${found.name}`)}, mean of ${found.amount}`),
          ]
        : null,
    ),
    cell(
      "spark",
      spark(item.runs, "Losses"),
    ),
    cell("findings", findingCounts(findingsOf(item.runs))),
    cell("settings", settings(item.runs[0], page, ["training.seed"])),
    cell(
      "updated",
      h(
        "a",
        { href: `/compare?group=1&${ids}`, title: "Curves: mean and band over the seeds", "data-focus": "band" },
        "Curves",
      ),
    ),
  );
}

function checkbox(item, page, name) {
  return h("input", {
    type: "checkbox",
    checked: page.isChosen(item),
    "aria-label": `Choose ${name}`,
    "data-focus": "pick",
    on: { change: (event) => page.choose(item, event.target.checked) },
  });
}

function pinIcon() {
  return svg(
    "svg",
    { viewBox: "0 0 12 12", width: 11, height: 11, "aria-hidden": "true" },
    svg("path", { d: "M4 1h4l-.5 4L9.5 7H6.6V11h-1.2V7H2.5L4.5 5z", fill: "currentColor" }),
  );
}

function progress(run) {
  const steps = run.total_steps
    ? `${count(run.step)} / ${count(run.total_steps)}`
    : run.step === null || run.step === undefined
      ? ""
      : plural(run.step, "step");
  const left =
    run.status === "running" && run.seconds_left !== null && run.seconds_left !== undefined
      ? `${duration(run.seconds_left)} left`
      : "";
  const known = Number.isFinite(run.progress);
  return [
    known ? h("progress", { max: 1, value: run.progress, "aria-label": `Progress of ${run.name}` }) : null,
    h(
      "span",
      {
        class: "dim",
        title: `step ${count(run.step)}${run.total_steps ? ` of ${count(run.total_steps)}` : ""}`,
      },
      steps,
    ),
    left ? h("span", { class: "dim" }, left) : null,
  ];
}

function metric(run) {
  if (run.metric) {
    return [
      h(
        "span",
        {
          class: "value",
          title: `${bestName(run.metric.name)}${run.metric.step ? `, at step ${count(run.metric.step)}` : ""}`,
        },
        number(run.metric.value),
      ),
      run.best_of ? bestBadge(run) : null,
      h("span", { class: "dim" }, ` ${metricName(`eval:${run.metric.name}`)}`),
    ];
  }
  // A training loss is of one batch: it stands in the note, as no best of anything.
  const newest = run.loss === null || run.loss === undefined ? "" : `The newest training loss is ${number(run.loss)}`;
  const told = run.metric_note || (newest && "no evaluation");
  return told ? h("span", { class: "dim", title: newest || null }, told) : null;
}

/** Of all runs of the board: what is searched for, hidden or sorted does not move it. */
function bestBadge({ metric: { name, greater_is_better: isGreater }, task, best_of: { amount } }) {
  const what = `The ${isGreater ? "highest" : "lowest"} ${metricName(`eval:${name}`)}`;
  const title =
    `${what} of all ${count(amount)} runs on this data, task ${words(task)}, whose newest loss is finite. ` +
    "A search or a hidden run does not change it; trials of studies count, archived runs do not.";
  return h("span", { class: "tag best", title }, `best of ${count(amount)}`);
}

export function metricName(name) {
  return String(name).startsWith("eval:") ? `validation ${words(name.slice(5))}` : words(name);
}

/** The best metric of a run is always one of its evaluations. */
export function bestName(name) {
  return `best validation ${words(name)}`;
}

function settings(run, page, without = []) {
  const pairs = telling(run, page.commonness).filter(([path]) => !without.includes(path));
  const text = (show) => pairs.map(([path, value]) => `${path.split(".").at(-1)}=${show(value)}`);
  const shown = text(compactSetting).map((each) => [h("span", { class: "pair" }, each), " "]);
  return h("span", { class: "dim", title: text(setting).join("\n") }, shown);
}

function statusCounts(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  if (counts.size === 1) return statusBadge(runs[0].status);
  return h("span", { class: "dim" }, [...counts].map(([status, amount]) => `${amount} ${status}`).join(", "));
}

/** Of a group: those of all of its runs, or of the first run whose findings are not known. */
function findingsOf(runs) {
  const unknown = runs.find((run) => !run.findings);
  if (unknown) return unknown;
  const severities = ["error", "warning", "info"];
  const findings = severities.map((severity) => [severity, sum(runs, (run) => run.findings[severity])]);
  return { findings: Object.fromEntries(findings) };
}

/** Of one run: a group makes no steps. */
function stepsOfGroup(runs) {
  const steps = runs.map((run) => run.step ?? 0);
  const [fewest, most] = [Math.min(...steps), Math.max(...steps)];
  return fewest === most ? `${plural(most, "step")} each` : `${count(fewest)} to ${plural(most, "step")} each`;
}

function stepsOfEach(runs) {
  return runs.map((run) => `${run.name}: ${plural(run.step ?? 0, "step")}`).join("\n");
}

function sum(items, of) {
  return items.reduce((total, item) => total + (of(item) ?? 0), 0);
}
