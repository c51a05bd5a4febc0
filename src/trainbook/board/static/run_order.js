// Which runs stand where: sorted, grouped by configuration without the seed, the pinned ones first.

import { moment, plural, toNumber } from "./format.js";

const STATUS_ORDER = ["running", "failed", "abandoned", "interrupted", "finished"];

const KEYS = {
  name: (run) => String(run.name).toLowerCase(),
  status: (run) => STATUS_ORDER.indexOf(run.status) + 1 || 9,
  progress: (run) => run.progress ?? -1,
  metric: (run) => (run.metric?.greater_is_better ? -1 : 1) * finite(run.metric?.value),
  loss: (run) => finite(run.loss),
  findings: (run) =>
    1e6 * (run.findings?.error ?? 0) + 1e3 * (run.findings?.warning ?? 0) + (run.findings?.info ?? 0),
  guard: (run) => run.guard ?? 0,
  updated: (run) => moment(run.updated ?? run.started)?.getTime() ?? 0,
};

function finite(value) {
  const known = toNumber(value);
  return Number.isFinite(known) ? known : Infinity;
}

/** The metrics of the runs, as `[name, number of runs]`: the one that most of them have comes first. */
export function metricsOf(runs) {
  const amounts = new Map();
  for (const { metric } of runs.filter(hasMetric)) amounts.set(metric.name, (amounts.get(metric.name) ?? 0) + 1);
  return [...amounts].sort(([a, numA], [b, numB]) => numB - numA || a.localeCompare(b));
}

function hasMetric({ metric }) {
  return Boolean(metric) && Number.isFinite(toNumber(metric.value));
}

/** In which part of the list a run stands in either direction: an accuracy is no better than a loss, and a run without
 *  a value is neither the best nor the worst. */
function partOf(sort, runs) {
  const name = sort.replace(/^-/, "");
  if (name === "loss") return (run) => (run.loss === null || run.loss === undefined ? 1 : 0);
  if (name !== "metric") return () => 0;
  const names = metricsOf(runs).map(([metric]) => metric);
  return (run) => (hasMetric(run) ? names.indexOf(run.metric.name) : names.length);
}

function sorter(sort, runs) {
  const isDown = sort.startsWith("-");
  const key = KEYS[isDown ? sort.slice(1) : sort] ?? KEYS.updated;
  const part = partOf(sort, runs);
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const first = (values) => values.reduce((a, b) => (compare(a, b) * (isDown ? -1 : 1) > 0 ? b : a));
  const placeOf = (item) => {
    const own = item.runs ?? [item.run];
    const ownPart = Math.min(...own.map(part));
    return [ownPart, first(own.filter((run) => part(run) === ownPart).map(key))];
  };
  return (items) => {
    const places = new Map(items.map((item) => [item, placeOf(item)]));
    const order = (a, b) => {
      const [[partA, keyA], [partB, keyB]] = [places.get(a), places.get(b)];
      return partA - partB || (isDown ? -1 : 1) * compare(keyA, keyB) || compare(a.key, b.key);
    };
    return items.sort(order);
  };
}

/** The rows in their order: `{key, run, depth}`; for several runs of one configuration `{key, runs, shown, isOpen}`. */
export function arranged(runs, { sort, isGrouped, opened, pinned, hidden }) {
  const sorted = sorter(sort, runs);
  let items = runs.filter((run) => !hidden.has(run.id)).map((run) => rowOf(run, 0));
  if (isGrouped) items = grouped(runs, items, hidden);
  items = sorted(items);
  const isPinned = (item) => (item.runs ?? [item.run]).some((run) => pinned.has(run.id));
  items = [...items.filter(isPinned), ...items.filter((item) => !isPinned(item))];
  return items.flatMap((item) => {
    if (!item.runs) return [item];
    item.isOpen = opened.has(item.key);
    return item.isOpen ? [item, ...sorted(item.shown.map((run) => rowOf(run, 1)))] : [item];
  });
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

const RATE = /(^|[._])(learning_rate|lr)$/;
const SECTIONS = { data: 2, precision: 2, memory: 2, distributed: 2, evaluation: 3, checkpoint: 3, logging: 3, guard: 3 };

/** How much a setting matters to training: the learning rate most, the seed least. */
function importance(path) {
  if (RATE.test(path)) return 0;
  return /(^|\.)seed$/.test(path) ? 4 : (SECTIONS[path.split(".")[0]] ?? 1);
}

/** A run's settings without those that all have in common: what matters to training first, of that what is rare. */
export function telling(run, commonness) {
  const rank = ([path, value]) => 2 * importance(path) + commonness([path, value]);
  return Object.entries(run.settings ?? {})
    .filter((pair) => commonness(pair) < 1)
    .sort((a, b) => rank(a) - rank(b));
}

/** Of runs that differ in the seed alone, as the server and the command line name them. */
export function groupName(names) {
  const more = names.length - 1;
  return `${names.toSorted()[0]}${more ? ` and ${plural(more, "more seed")}` : ""}`;
}
