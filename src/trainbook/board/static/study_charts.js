// Pictures of a study: loss by learning rate, the best so far, importance, and the effects with their intervals.

import { colour, linear, padded, PALETTE, ticks } from "./scale.js";
import { svg } from "./dom.js";
import { compact, number, setting, share, toNumber, words } from "./format.js";
import { axes, dot, extent, figure, path, text } from "./figure.js";

const RATE = /(^|\.)(learning_rate|rate)$/;

function results(trials) {
  return trials.filter((trial) => Number.isFinite(toNumber(trial.loss)));
}

/** A few lost trials must not press all others into a line: the scale then is logarithmic. */
function isWide([low, high]) {
  return low > 0 && high > 20 * low;
}

export function bestSoFar(told, name) {
  const { trials = [], best_so_far: best = [], metric } = told;
  if (best.length < 2) return null;
  const known = results(trials).filter((trial) => trial.kind !== "repeat");
  const y = extent([...known.map((trial) => trial.loss), ...best.map((each) => each.best)]);
  const title = `Best ${words(metric?.name ?? "loss")} so far`;
  return figure({
    title,
    name,
    columns: ["trial", "best"],
    rows: best.map((each) => [each.number, each.best]),
    caption: "A dot for each trial in its order. The line is the best so far.",
    draw(root, width, height) {
      const place = axes(root, width, height, {
        x: extent([...known.map((trial) => trial.number), ...best.map((each) => each.number)]),
        y,
        xTitle: "trial",
        yLog: isWide(y),
        xText: (value) => (Number.isInteger(value) ? String(value) : ""),
      });
      for (const trial of known)
        root.append(
          dot(place.x(trial.number), place.y(trial.loss), colour("mark"), { radius: 3, title: titleOf(trial) }),
        );
      const steps = best.flatMap((each, at) =>
        at
          ? [
              [place.x(each.number), place.y(best[at - 1].best)],
              [place.x(each.number), place.y(each.best)],
            ]
          : [[place.x(each.number), place.y(each.best)]],
      );
      root.append(path(steps, colour("c0"), { width: 2 }));
    },
  });
}

export function rates(told, name) {
  const { trials = [], rate_curves: curves = [], metric } = told;
  const rateOf = (trial) => Object.entries(trial.values ?? {}).find(([key]) => RATE.test(key))?.[1];
  const dots = results(trials).filter(
    (trial) => typeof rateOf(trial) === "number" && rateOf(trial) > 0 && trial.kind !== "repeat",
  );
  const isCloud = told.kind === "tune" || told.kind === "proxy"; // single trials: the best of each interval is joined
  const lines = isCloud
    ? [
        {
          name: "best trial of each interval",
          points: lowerEdge(
            dots.map((trial) => [rateOf(trial), trial.loss]),
            metric?.greater_is_better,
          ),
        },
      ]
    : curves
        .map((curve) => ({
          ...curve,
          points: curve.points.filter(([rate, loss]) => rate > 0 && Number.isFinite(toNumber(loss))),
        }))
        .filter((curve) => curve.points.length);
  if (dots.length < 2 && !lines.length) return null;
  const x = extent([...dots.map(rateOf), ...lines.flatMap((curve) => curve.points.map(([rate]) => rate))]);
  const y = extent([
    ...dots.map((trial) => trial.loss),
    ...lines.flatMap((curve) => curve.points.map(([, loss]) => loss)),
  ]);
  const rows = [
    ...dots.map((trial) => [trial.arm ?? "trial", rateOf(trial), trial.loss]),
    ...lines.flatMap((curve) => curve.points.map(([rate, loss]) => [curve.name, rate, loss])),
  ];
  const isNamed = lines.length > 1;
  return figure({
    title: `${capital(words(metric?.name ?? "loss"))} by learning rate`,
    name,
    height: isNamed ? 280 : 250,
    columns: ["curve", "learning rate", metric?.name ?? "loss"],
    rows,
    caption: isCloud
      ? "A dot for each trial. The line joins the best trial in each interval of the learning rate."
      : "Means over seeds at each learning rate.",
    draw(root, width, height) {
      const place = axes(root, width, isNamed ? height - 18 * Math.ceil(lines.length / 3) : height, {
        x,
        y,
        xLog: true,
        yLog: isWide(y),
        xTitle: "learning rate",
      });
      for (const trial of dots)
        root.append(
          dot(place.x(rateOf(trial)), place.y(trial.loss), colour("mark"), { radius: 3.2, title: titleOf(trial) }),
        );
      lines.forEach((curve, at) => {
        const tint = colour(`c${at % PALETTE}`);
        const points = curve.points
          .toSorted((a, b) => a[0] - b[0])
          .map(([rate, loss]) => [place.x(rate), place.y(loss)]);
        root.append(
          path(points, tint, { width: 1.8 }),
          ...points.map(([px, py]) => dot(px, py, tint, { radius: 2.6 })),
        );
      });
      if (isNamed)
        legend(
          root,
          width,
          height,
          lines.map((curve) => curve.name),
        );
    },
  });
}

const STRETCHES = 8;

function lowerEdge(points, isHigherBetter) {
  const places = points.map(([rate]) => Math.log(rate));
  const [low, high] = extent(places) ?? [0, 1];
  const best = new Map();
  points.forEach((point, at) => {
    const stretch = Math.min(STRETCHES - 1, Math.floor(((places[at] - low) / (high - low || 1)) * STRETCHES));
    const known = best.get(stretch);
    if (!known || (isHigherBetter ? point[1] > known[1] : point[1] < known[1])) best.set(stretch, point);
  });
  return [...best.values()];
}

function legend(root, width, height, names) {
  const column = width / 3;
  const top = height - 18 * Math.ceil(names.length / 3) + 14;
  names.forEach((name, at) => {
    const [x, y] = [8 + (at % 3) * column, top + 18 * Math.floor(at / 3)];
    const most = Math.floor((column - 26) / 6);
    root.append(
      svg("rect", { x, y: y - 6, width: 12, height: 3, fill: colour(`c${at % PALETTE}`) }),
      text(x + 17, y, name.length > most ? `${name.slice(0, most - 1)}…` : name, { fill: "ink" }),
    );
  });
}

export function importance(told, name) {
  const shares = told.importance?.shares ?? [];
  if (!shares.length) return null;
  const sorted = shares.toSorted((a, b) => b.share - a.share).slice(0, 20);
  const method = told.importance.method ? `${capital(told.importance.method)}. ` : "";
  return figure({
    title: "Importance of each knob",
    name,
    height: 28 + 26 * sorted.length,
    columns: ["knob", "share"],
    rows: sorted.map((each) => [each.path, each.share]),
    caption: `${method}The share of the variation between trials that a knob explains.`,
    draw(root, width) {
      const left = Math.min(width * 0.4, 12 + 6.6 * Math.max(...sorted.map((each) => nameOf(each.path).length)));
      const place = linear([0, Math.max(...sorted.map((each) => each.share), 0.01)], [left, width - 52]);
      sorted.forEach((each, at) => {
        const y = 12 + 26 * at;
        root.append(
          text(left - 8, y + 12, nameOf(each.path), { anchor: "end", fill: "ink" }),
          svg("rect", {
            x: left,
            y,
            width: Math.max(1, place(each.share) - left),
            height: 16,
            rx: 2,
            fill: colour("c0"),
          }),
          text(place(each.share) + 6, y + 12, share(each.share, 0)),
        );
      });
    },
  });
}

/** Of an ablation: the mean over the seeds of each arm, with the lowest and highest. */
export function armCurves(told, name) {
  const arms = [...new Set((told.arm_curves ?? []).map((each) => each.arm))];
  const data = (told.arm_curves ?? [])[0]?.data; // the first data set; the others are in the sections
  const curves = (told.arm_curves ?? []).filter((each) => each.data === data && each.rows.length > 1);
  if (!curves.length) return null;
  const rows = curves.flatMap((each) => each.rows.map((row) => [each.arm, ...row]));
  const y = extent(rows.flatMap((row) => row.slice(2)));
  return figure({
    title: `Validation ${words(told.metric?.name ?? "loss")} of each arm`,
    name,
    height: 270 + 18 * Math.ceil(curves.length / 3),
    columns: ["arm", "step", "mean", "lowest", "highest"],
    rows,
    caption: "Means over seeds, with the range from the lowest to the highest.",
    draw(root, width, height) {
      const place = axes(root, width, height - 18 * Math.ceil(curves.length / 3), {
        x: extent(rows.map((row) => row[1])),
        y,
        yLog: isWide(y),
        xTitle: "step",
      });
      for (const curve of curves) {
        const tint = colour(`c${arms.indexOf(curve.arm) % PALETTE}`);
        const edge = [
          ...curve.rows.map((row) => [row[0], row[3]]),
          ...curve.rows.toReversed().map((row) => [row[0], row[2]]),
        ].map(([step, value]) => `${place.x(step).toFixed(1)},${place.y(value).toFixed(1)}`);
        root.append(
          svg("polygon", { points: edge.join(" "), fill: tint, opacity: 0.13 }),
          path(
            curve.rows.map((row) => [place.x(row[0]), place.y(row[1])]),
            tint,
            { width: 1.8 },
          ),
        );
      }
      legend(
        root,
        width,
        height,
        curves.map((curve) => curve.arm),
      );
    },
  });
}

const VERDICT_COLOURS = { better: "good", worse: "error" };

export function forest(told, name) {
  const rows = (told.forest?.rows ?? []).filter((row) => Number.isFinite(toNumber(row.difference)));
  if (!rows.length) return null;
  const unit = told.forest.unit ?? "";
  const ends = extent([0, ...rows.flatMap((row) => [row.low, row.high, row.difference])]);
  const isHigherBetter = told.metric?.greater_is_better;
  return figure({
    title: "Effect of each arm",
    name,
    height: 52 + 30 * rows.length,
    columns: ["arm", "difference", "low", "high", "verdict"],
    rows: rows.map((row) => [row.arm, row.difference, row.low, row.high, row.verdict]),
    caption: [
      `Difference from the control with its 95 % interval${unit ? `, in ${unit}` : ""};`,
      `better on the ${isHigherBetter ? "right" : "left"}.`,
      told.forest.epsilon > 0 ? "Shaded: too small to matter." : "",
    ].join(" "),
    draw(root, width, height) {
      const longest = Math.max(...rows.map((row) => row.arm.length));
      const left = Math.min(width * 0.34, 12 + 6.6 * longest);
      const right = width - 92;
      const [low, high] = padded(...ends, false);
      const place = linear([low, high], [left, right]);
      for (const each of ticks(low, high, (right - left) / 80))
        root.append(
          svg("line", { x1: place(each), x2: place(each), y1: 6, y2: height - 26, stroke: colour("grid") }),
          text(place(each), height - 10, compact(each), { anchor: "middle" }),
        );
      const epsilon = told.forest.epsilon;
      if (epsilon > 0)
        root.append(
          svg("rect", {
            x: Math.max(left, place(-epsilon)),
            width: Math.min(right, place(epsilon)) - Math.max(left, place(-epsilon)),
            y: 4,
            height: height - 30,
            fill: colour("mark"),
            opacity: 0.13,
          }),
        );
      root.append(
        svg("line", {
          x1: place(0),
          x2: place(0),
          y1: 4,
          y2: height - 26,
          stroke: colour("dim"),
          "stroke-dasharray": "4 3",
        }),
      );
      rows.forEach((row, at) => {
        const y = 22 + 30 * at;
        const tint = colour(VERDICT_COLOURS[row.verdict] ?? "mark");
        const most = Math.floor((left - 12) / 6.2);
        const arm = text(left - 8, y + 4, row.arm.length > most ? `${row.arm.slice(0, most - 1)}…` : row.arm, {
          anchor: "end",
          fill: "ink",
        });
        arm.append(svg("title", {}, row.arm));
        root.append(arm);
        if (Number.isFinite(row.low) && Number.isFinite(row.high))
          root.append(
            svg("line", { x1: place(row.low), x2: place(row.high), y1: y, y2: y, stroke: tint, "stroke-width": 2 }),
          );
        root.append(
          dot(place(row.difference), y, tint, {
            radius: 4.5,
            title: `${row.arm}: ${number(row.difference)} (${number(row.low)} to ${number(row.high)}), ${row.verdict}`,
          }),
          text(right + 8, y + 4, row.verdict ?? "", { fill: VERDICT_COLOURS[row.verdict] ?? "dim", weight: 600 }),
        );
      });
    },
  });
}

function nameOf(knob) {
  return knob.split(".").at(-1).replaceAll("_", " ");
}

function titleOf(trial) {
  const values = Object.entries(trial.values ?? {}).map(
    ([knob, value]) => `${nameOf(knob)} ${setting(typeof value === "number" ? Number(value.toPrecision(3)) : value)}`,
  );
  return `${trial.name ?? `trial ${trial.number}`}: ${number(trial.loss)}\n${values.join("\n")}`;
}

function capital(value) {
  return value ? value[0].toUpperCase() + value.slice(1) : "";
}
