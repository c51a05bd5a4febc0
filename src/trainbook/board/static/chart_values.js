// What a curve says at a place, and which points it has within a range.

import { toNumber } from "./format.js";

/** The index of the point nearest to x among those within the range; null: there is none. */
export function nearest(curve, x, [from, to]) {
  const places = curve?.x ?? [];
  const [first, last] = [firstFrom(places, from), firstFrom(places, to, true) - 1];
  if (first > last) return null;
  const after = Math.min(last, Math.max(first, firstFrom(places, x)));
  let at = after > first && x - places[after - 1] < places[after] - x ? after - 1 : after;
  if (x === Infinity) while (at > first && isGap(curve, at)) at -= 1;
  return at;
}

/** The first index whose place is at least x, or above it. */
function firstFrom(places, x, isAbove = false) {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] < x || (isAbove && places[middle] === x)) low = middle + 1;
    else high = middle;
  }
  return low;
}

function isGap(curve, at) {
  return !curve.isBand && curve.low[at] === null && !badAt(curve, at);
}

/** What is no finite number at this point, or in its column of pixels. */
function badAt({ x, bad = [] }, at) {
  const from = at > 0 ? (x[at - 1] + x[at]) / 2 : -Infinity;
  const to = at < x.length - 1 ? (x[at] + x[at + 1]) / 2 : Infinity;
  return bad.find((each) => each.x >= from && each.x <= to);
}

/** The value of a point; of a column of pixels the lowest and highest, without a cursor the last. */
export function valueAt(curve, at, x, text) {
  if (curve.isBand) return `${text(curve.mean[at])} (${text(curve.low[at])} to ${text(curve.high[at])})`;
  const [bottom, top] = [toNumber(curve.low[at]), toNumber(curve.high[at])];
  if (bottom === null) return badAt(curve, at)?.kind.replace("Infinity", "∞") ?? "";
  if (x === Infinity) return text(curve.last?.[at] ?? top);
  return bottom === top ? text(top) : `${text(bottom)} to ${text(top)}`;
}

/** Whether the line between two neighbouring points crosses a range in which there is none. */
export function passesThrough(curve, [from, to]) {
  const after = firstFrom(curve?.x ?? [], from);
  const isInside = after > 0 && after < (curve?.x.length ?? 0) && curve.x[after] > to;
  return isInside && !isGap(curve, after - 1) && !isGap(curve, after) && curve.low[after - 1] !== null && curve.low[after] !== null;
}

/** Whether a curve has a point within a range. A gap is none. */
export function hasPointIn(curve, [from, to]) {
  const isIn = (x) => x >= from && x <= to;
  return (
    (curve?.x ?? []).some((x, at) => isIn(x) && !isGap(curve, at)) || (curve?.bad ?? []).some((each) => isIn(each.x))
  );
}
