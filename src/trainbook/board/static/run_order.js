// Which runs stand where: sorted, grouped by configuration without the seed, the pinned ones first.

import { moment, plural, toNumber } from "./format.js";

const STATUS_ORDER = ["running", "failed", "abandoned", "interrupted", "finished"];

const KEYS = {
  name: (run) => String(run.name).toLowerCase(),
  status: (run) => STATUS_ORDER.indexOf(run.status) + 1 || 9,
  progress: (run) => run.progress ?? -1,
  metric: (run) => (run.metric ? (run.metric.greater_is_better ? -1 : 1) * finite(run.metric.value) : Infinity),
  loss: (run) => finite(run.loss),
  findings: (run) => 1000 * (run.findings?.error ?? 0) + (run.findings?.warning ?? 0),
  guard: (run) => run.guard ?? 0,
  updated: (run) => moment(run.updated ?? run.started)?.getTime() ?? 0,
};

function finite(value) {
  const known = toNumber(value);
  return Number.isFinite(known) ? known : Infinity;
}

function ordered(items, sort, keyOf) {
  const isDown = sort.startsWith("-");
  const key = KEYS[isDown ? sort.slice(1) : sort] ?? KEYS.updated;
  const keys = new Map(items.map((item) => [item, keyOf(item, key)]));
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return items.sort((a, b) => (isDown ? -1 : 1) * compare(keys.get(a), keys.get(b)) || compare(a.key, b.key));
}

/** The rows in their order: `{key, run, depth}`; for several runs of one configuration `{key, runs, shown, isOpen}`. */
export function arranged(runs, { sort, isGrouped, opened, pinned, hidden }) {
  const single = (run, depth = 0) => rowOf(run, depth);
  let items = runs.filter((run) => !hidden.has(run.id)).map((run) => single(run));
  if (isGrouped) items = grouped(runs, items, hidden);
  const first = (item, key) => (item.runs ? best(item.runs.map(key), sort) : key(item.run));
  items = ordered(items, sort, first);
  const isPinned = (item) => (item.runs ?? [item.run]).some((run) => pinned.has(run.id));
  items = [...items.filter(isPinned), ...items.filter((item) => !isPinned(item))];
  return items.flatMap((item) => {
    if (!item.runs) return [item];
    item.isOpen = opened.has(item.key);
    return item.isOpen
      ? [
          item,
          ...ordered(
            item.shown.map((run) => single(run, 1)),
            sort,
            first,
          ),
        ]
      : [item];
  });
}

function best(values, sort) {
  return values.reduce((a, b) => (sort.startsWith("-") ? (b > a ? b : a) : b < a ? b : a));
}

/** One row object for a summary as long as it is the same, so that its element stays. */
const rows = new WeakMap();
function rowOf(run, depth) {
  const known = rows.get(run);
  if (known?.depth === depth) return known;
  const row = { key: run.id, run, depth };
  rows.set(run, row);
  return row;
}

function grouped(runs, items, hidden) {
  const groups = new Map();
  for (const run of runs) {
    if (!run.group) continue;
    if (!groups.has(run.group)) groups.set(run.group, []);
    groups.get(run.group).push(run);
  }
  const isSeveral = (each) => counting(each).length > 1;
  const alone = items.filter((item) => !item.run.group || !isSeveral(groups.get(item.run.group)));
  const several = [...groups].filter(([, each]) => isSeveral(each) && each.some((run) => !hidden.has(run.id)));
  return [
    ...alone,
    ...several.map(([group, each]) => ({
      key: `group ${group}`,
      runs: each,
      shown: each.filter((run) => !hidden.has(run.id)),
    })),
  ];
}

/** One run of each seed: another with the same settings and seed is no new evidence. */
export function counting(runs) {
  return runs.filter((run) => !run.repeat_of);
}

/** Mean and standard deviation of the metric over the seeds of a group, hidden or not. */
export function groupMetric(runs) {
  const metrics = counting(runs)
    .map((run) => run.metric)
    .filter((metric) => metric && Number.isFinite(toNumber(metric.value)));
  if (!metrics.length || metrics.some((metric) => metric.name !== metrics[0].name)) return null;
  const values = metrics.map((metric) => toNumber(metric.value));
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const spread =
    values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1)) : null;
  return { name: metrics[0].name, mean, spread, amount: values.length };
}

/** How many of the listed runs have a setting at a value: the rarest tell most of a run. */
export function commonnessOf(runs) {
  const amounts = new Map();
  for (const run of runs) {
    for (const pair of Object.entries(run.settings ?? {}))
      amounts.set(JSON.stringify(pair), (amounts.get(JSON.stringify(pair)) ?? 0) + 1);
  }
  return (pair) => (amounts.get(JSON.stringify(pair)) ?? 0) / Math.max(1, runs.length);
}

/** A run's settings, what distinguishes it first; what all have in common is left out. */
export function telling(run, commonness) {
  const rank = ([path, value]) => (path.endsWith(".seed") ? 2 : 0) + commonness([path, value]);
  return Object.entries(run.settings ?? {})
    .filter((pair) => commonness(pair) < 1)
    .sort((a, b) => rank(a) - rank(b));
}

// What decides whether the metrics of two runs can be compared: the data that they are evaluated on, and in what units.
const EVALUATED_ON = [
  "data.source",
  "data.validation",
  "data.validation_ratio",
  "data.tokenizer",
  "data.vocab_size",
  "data.max_seq_length",
  "evaluation.eval_max_samples",
  "evaluation.target_unit",
];

/** Of comparable runs, where there are two or more, the best that has not diverged: id → {amount, recipe}. */
export function bestOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    const { metric, recipe, task } = run;
    const isKnown = metric && recipe && task && typeof metric.greater_is_better === "boolean";
    if (!isKnown || run.kind === "foreign" || !Number.isFinite(toNumber(metric.value))) continue;
    const data = EVALUATED_ON.map((path) => run.settings?.[path] ?? null);
    const key = JSON.stringify([recipe, task, metric.name, data]);
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  const found = new Map();
  for (const group of groups.values()) {
    const [first, ...others] = group.filter(isSound);
    if (!first || group.length < 2) continue;
    const sign = first.metric.greater_is_better ? -1 : 1;
    const best = others.reduce((a, b) => (sign * b.metric.value < sign * a.metric.value ? b : a), first);
    found.set(best.id, { amount: group.length, recipe: recipeName(best.recipe) });
  }
  return found;
}

function isSound({ loss }) {
  return loss === null || loss === undefined || Number.isFinite(toNumber(loss));
}

/** Of a study's base.yaml the name of the study. */
function recipeName(recipe) {
  return recipe
    .replace(/\/base\.ya?ml$/, "")
    .split("/")
    .at(-1)
    .replace(/\.ya?ml$/, "");
}

/** Of runs that differ in the seed alone, as the server and the command line name them. */
export function groupName(names) {
  const more = names.length - 1;
  return `${names.toSorted()[0]}${more ? ` and ${plural(more, "more seed")}` : ""}`;
}
