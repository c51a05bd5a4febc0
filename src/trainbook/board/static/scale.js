// Scales and round ticks, for canvas and SVG.

export function linear([low, high], [start, end]) {
  const span = high - low || 1;
  const place = (value) => start + ((value - low) / span) * (end - start);
  place.invert = (at) => low + ((at - start) / (end - start)) * span;
  return place;
}

export function log([low, high], [start, end]) {
  const inner = linear([Math.log10(low), Math.log10(high)], [start, end]);
  const place = (value) => (value > 0 ? inner(Math.log10(value)) : NaN);
  place.invert = (at) => 10 ** inner.invert(at);
  return place;
}

/** Round numbers between two ends. */
export function ticks(low, high, most = 6) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++)
    found.push(Number((n * step).toPrecision(12)));
  return found;
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];

/** Round times in seconds. */
export function timeTicks(low, high, most = 6) {
  const step = TIMES.find((each) => (high - low) / each <= most);
  if (!step || high - low < 2) return ticks(low, high, most);
  return Array.from(
    { length: Math.floor(high / step) - Math.ceil(low / step) + 1 },
    (_, at) => (Math.ceil(low / step) + at) * step,
  );
}

/** Round numbers of KiB, MiB, … */
export function byteTicks(low, high, most = 6) {
  const unit = 1000 ** Math.max(0, Math.floor(Math.log(Math.max(Math.abs(high), 1)) / Math.log(1000)));
  return ticks(low / unit, high / unit, most).map((each) => each * unit);
}

/** Powers of ten; where these are few, also 2 and 5 times them; in less than a decade, plain ticks. */
export function logTicks(low, high, most = 6) {
  if (!(low > 0) || !(high > low)) return [low];
  const decades = Math.log10(high / low);
  if (decades < 0.7) return ticks(low, high, most).filter((each) => each > 0);
  const factors = decades < 1.6 ? [1, 2, 3, 5] : decades < 3 ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / most));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const value = Number((factor * 10 ** power).toPrecision(12));
      if (value >= low * 0.9999 && value <= high * 1.0001) found.push(value);
    }
  }
  return found.length > 1 ? found : ticks(low, high, most).filter((each) => each > 0);
}

/** Both ends with some room, so that a line does not lie on the frame. */
export function padded(low, high, isLog) {
  if (isLog) {
    const by = low === high ? 1.5 : (high / low) ** 0.05;
    return [low / by, high * by];
  }
  const by = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
  return [low - by, high + by];
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888888";
}

export const PALETTE = 8;
