// What is drawn on a chart: raw curves by column of pixels, bands, a smoothed line on top, marks, and what is no
// number.

import { colour, PALETTE } from "./scale.js";

/** Lowest and highest x or y of the finite values; on a log axis of the positive ones, of y within a range of x only.
 *  null: there is none. */
export function extentOf(series, axis, isLog = false, view = [-Infinity, Infinity]) {
  let [low, high] = [Infinity, -Infinity];
  const meet = (value) => {
    if (typeof value !== "number" || !Number.isFinite(value) || (isLog && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const { curve } of series) {
    if (!curve) continue;
    if (axis === "x") {
      meet(curve.x[0]);
      meet(curve.x.at(-1));
      for (const each of curve.bad ?? []) meet(each.x);
    } else {
      const meetInView = (value, at) => curve.x[at] >= view[0] && curve.x[at] <= view[1] && meet(value);
      curve.low.forEach(meetInView);
      curve.high.forEach(meetInView);
    }
  }
  return low <= high ? [low, high] : null;
}

export function drawChart(u, state) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  const x = (value) => u.valToPos(value, "x", true);
  const y = (value) => u.valToPos(value, "y", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineJoin = "round";
  drawMarks(ctx, bbox, ratio, x, state.marks ?? [], state.isFirst);
  const visible = state.visible ?? [];
  for (const each of visible) if (each.isBand) drawBand(ctx, ratio, x, y, each);
  for (const each of visible) if (!each.isBand) drawRaw(ctx, bbox, ratio, x, y, each, state);
  if (state.smoothing) for (const each of visible) if (!each.isBand) drawSmooth(ctx, bbox, ratio, x, y, each, state);
  if (state.clip !== null && state.clip !== undefined) drawClip(ctx, bbox, ratio, x, y, state.clip, visible);
  ctx.restore();
  for (const each of visible) drawLost(ctx, bbox, ratio, x, each, state.isLog);
}

/** The line through the first, lowest, highest and last value of each column: as if every point were drawn. */
function drawRaw(ctx, bbox, ratio, x, y, { curve, colour: number, isThin }, { smoothing, isLog }) {
  if (!curve?.x.length) return;
  const { low, high, first, last } = curve;
  ctx.beginPath();
  let isDown = false;
  let points = 0;
  let single = null;
  const flush = () => {
    if (points === 1 && single) {
      ctx.moveTo(single[0] + 1.6 * ratio, single[1]);
      ctx.arc(single[0], single[1], 1.6 * ratio, 0, 7);
    }
    points = 0;
  };
  curve.x.forEach((value, at) => {
    if (!isDrawn(low[at], isLog) || !isDrawn(high[at], isLog)) {
      flush();
      isDown = false;
      return;
    }
    const left = x(value);
    const [top, bottom] = [y(high[at]), y(low[at])];
    const start = isDrawn(first?.[at], isLog) ? y(first[at]) : bottom;
    const end = isDrawn(last?.[at], isLog) ? y(last[at]) : top;
    if (isDown) ctx.lineTo(left, start);
    else ctx.moveTo(left, start);
    isDown = true;
    if (top !== bottom) {
      ctx.lineTo(left, bottom);
      ctx.lineTo(left, top);
      ctx.lineTo(left, end);
    }
    points += 1;
    single = [left, start];
  });
  flush();
  ctx.globalAlpha = smoothing && canBeSmoothed(curve) ? 0.38 : 1;
  ctx.strokeStyle = colour(`c${number % PALETTE}`);
  ctx.lineWidth = (isThin ? 1 : 1.25) * ratio;
  ctx.stroke();
  if (curve.x.length <= 60) drawDots(ctx, ratio, x, y, curve, isLog);
  ctx.globalAlpha = 1;
}

function drawDots(ctx, ratio, x, y, curve, isLog) {
  ctx.fillStyle = ctx.strokeStyle;
  curve.x.forEach((value, at) => {
    if (!isDrawn(curve.high[at], isLog)) return;
    ctx.beginPath();
    ctx.arc(x(value), y(curve.high[at]), 2 * ratio, 0, 7);
    ctx.fill();
  });
}

function isDrawn(value, isLog) {
  return typeof value === "number" && Number.isFinite(value) && (!isLog || value > 0);
}

function drawBand(ctx, ratio, x, y, { curve, colour: number }) {
  if (!curve?.x.length) return;
  const known = curve.x
    .map((value, at) => at)
    .filter((at) => isDrawn(curve.mean[at]) && isDrawn(curve.low[at]) && isDrawn(curve.high[at]));
  ctx.fillStyle = ctx.strokeStyle = colour(`c${number % PALETTE}`);
  ctx.globalAlpha = 0.18;
  ctx.beginPath();
  known.forEach((at) => ctx.lineTo(x(curve.x[at]), y(curve.high[at])));
  known.toReversed().forEach((at) => ctx.lineTo(x(curve.x[at]), y(curve.low[at])));
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.beginPath();
  known.forEach((at) => ctx.lineTo(x(curve.x[at]), y(curve.mean[at])));
  ctx.lineWidth = 1.75 * ratio;
  ctx.stroke();
}

const FEWEST = 8; // points of a curve that is smoothed

export function canBeSmoothed(curve) {
  return curve?.x.length >= FEWEST;
}

/** A trailing average, with weights that fall off towards earlier points: what comes later never shows before it
 *  happens. The raw line stays below it. */
export function smoothed(curve, window) {
  const values = curve.mean ?? curve.low.map((low, at) => (low === null ? null : (low + curve.high[at]) / 2));
  const places = curve.x
    .map((x, at) => at)
    .filter((at) => typeof values[at] === "number" && Number.isFinite(values[at]));
  const average = averaged(places, curve.x, values, window);
  return curve.x.map((x, at) => average.get(at) ?? null);
}

function averaged(places, x, values, window) {
  const out = new Map();
  let mean = null;
  let before = null;
  for (const at of places) {
    const keep = before === null ? 0 : Math.exp(-Math.abs(x[at] - x[before]) / window);
    mean = keep * (mean ?? 0) + (1 - keep) * values[at];
    before = at;
    out.set(at, mean);
  }
  return out;
}

/** How far back the average reaches on the x axis: there a point has 1/e of the weight of the newest. */
export function smoothingWindow(smoothing, [low, high]) {
  return (smoothing / 100) ** 2 * 0.25 * (high - low);
}

function drawSmooth(ctx, bbox, ratio, x, y, { curve, colour: number }, { smoothing, isLog, view, series }) {
  if (!canBeSmoothed(curve)) return;
  const range = view ?? extentOf(series, "x");
  ctx.beginPath();
  let isDown = false;
  smoothed(curve, smoothingWindow(smoothing, range)).forEach((value, at) => {
    if (!isDrawn(value, isLog)) return;
    ctx[isDown ? "lineTo" : "moveTo"](x(curve.x[at]), y(value));
    isDown = true;
  });
  ctx.strokeStyle = colour(`c${number % PALETTE}`);
  ctx.lineWidth = 2.25 * ratio;
  ctx.stroke();
}

/** Of a finding also the stretch that it speaks of: tinted where it is short; a bar at the top of the first chart. */
function drawMarks(ctx, bbox, ratio, x, marks, isFirst) {
  const colours = { error: colour("error"), warning: colour("warning"), info: colour("mark") };
  for (const mark of marks) {
    if (mark.x === null) continue;
    ctx.strokeStyle = ctx.fillStyle = colours[mark.severity] ?? colours.info;
    const left = x(mark.x);
    if (mark.kind === "finding" && mark.until !== null && mark.until > mark.x) {
      const width = Math.max(ratio, x(mark.until) - left);
      ctx.globalAlpha = 0.07;
      if (width < 0.35 * bbox.width) ctx.fillRect(left, bbox.top, width, bbox.height);
      ctx.globalAlpha = 0.8;
      if (isFirst) ctx.fillRect(left, bbox.top, width, 2 * ratio);
    }
    ctx.globalAlpha = mark.kind === "checkpoint" ? 0.35 : 0.75;
    ctx.setLineDash(
      { skip: [2, 3], quarantine: [1, 3], resume: [6, 4], checkpoint: [1, 5], remedy: [8, 3, 2, 3], oom: [8, 3, 2, 3] }[
        mark.kind
      ]?.map((each) => each * ratio) ?? [],
    );
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.setLineDash([]);
  ctx.globalAlpha = 1;
}

const CLIP_PLACES = 12; // from the right end on, above and below the line: the label stands where no curve is

function drawClip(ctx, bbox, ratio, x, y, value, series) {
  const at = y(value);
  ctx.strokeStyle = colour("dim");
  ctx.lineWidth = ratio;
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, at);
  ctx.lineTo(bbox.left + bbox.width, at);
  ctx.stroke();
  ctx.setLineDash([]);
  const label = `clipped above ${value}`;
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  const [width, height, gap] = [ctx.measureText(label).width, 14 * ratio, 3 * ratio];
  const room = bbox.width - width - 2 * gap;
  const places = Array.from({ length: CLIP_PLACES }, (_, each) => bbox.left + gap + room * (1 - each / CLIP_PLACES))
    .flatMap((left) => [at - height, at].map((top) => ({ left, top, right: left + width, bottom: top + height })))
    .filter((each) => each.top >= bbox.top && each.bottom <= bbox.top + bbox.height);
  const place = places.find((each) => !series.some((one) => crosses(one.curve, each, x, y))) ?? places[0];
  if (!place) return;
  ctx.fillStyle = colour("dim");
  ctx.fillText(label, place.left, (place.top + place.bottom) / 2);
}

/** Whether some stretch between two points of a curve could pass through a rectangle. */
function crosses(curve, { left, right, top, bottom }, x, y) {
  const { x: places = [], low, high } = curve ?? {};
  return places.some((value, at) => {
    const next = Math.min(at + 1, places.length - 1);
    if (x(places[next]) < left || x(value) > right) return false;
    const ends = [low[at], high[at], low[next], high[next]].filter((each) => isDrawn(each)).map(y);
    return ends.length > 0 && Math.min(...ends) <= bottom && Math.max(...ends) >= top;
  });
}

/** At the border: a cross where the value is NaN, a triangle where it is infinite, a square where a log axis has no
 *  place for it. */
function drawLost(ctx, bbox, ratio, x, { curve }, isLog) {
  const size = 4 * ratio;
  const top = bbox.top + size + ratio;
  const bottom = bbox.top + bbox.height - size - ratio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("error");
  ctx.lineWidth = 1.75 * ratio;
  for (const each of curve?.bad ?? []) {
    const at = x(each.x);
    if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
    ctx.beginPath();
    if (each.kind === "NaN") {
      ctx.moveTo(at - size, top - size);
      ctx.lineTo(at + size, top + size);
      ctx.moveTo(at + size, top - size);
      ctx.lineTo(at - size, top + size);
      ctx.stroke();
    } else {
      const [y, turn] = each.kind === "-Infinity" ? [bottom, 1] : [top, -1];
      ctx.moveTo(at - size, y - turn * size);
      ctx.lineTo(at + size, y - turn * size);
      ctx.lineTo(at, y + turn * size);
      ctx.fill();
    }
  }
  if (isLog && curve) {
    curve.x.forEach((value, at) => {
      if (typeof curve.low[at] === "number" && curve.low[at] <= 0)
        ctx.fillRect(x(value) - ratio, bottom + size - ratio, 2 * ratio, 2 * ratio);
    });
  }
  ctx.restore();
}
