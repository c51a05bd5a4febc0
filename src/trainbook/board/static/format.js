// Numbers, times and sizes as people read them. NaN and the infinities arrive as strings.

export function toNumber(value) {
  if (typeof value === "number") return value;
  return { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity }[value] ?? null;
}

export function number(value, digits = 4) {
  const known = toNumber(value);
  if (known === null) return value === null || value === undefined ? "" : String(value);
  if (!Number.isFinite(known)) return Number.isNaN(known) ? "NaN" : known > 0 ? "∞" : "−∞";
  const size = Math.abs(known);
  if (known === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return minus(known.toExponential(2).replace("e+", "e"));
  if (Number.isInteger(known)) return minus(count(known));
  if (size < 0.1 && digits >= 4) return minus(String(Number(known.toPrecision(3))));
  return minus(known.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : digits));
}

function minus(text) {
  return text.replaceAll("-", "−");
}

/** A rate or another setting: all of its digits and no zeros. */
export function setting(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (Array.isArray(value)) return value.map(setting).join(", ");
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e7)) return value.toExponential().replace("e+", "e");
  return String(value);
}

const LONGEST = 28; // letters of a text in a list

/** A setting in a list: 1e-3, 0.0015, the end of a path, the beginning of a text. */
export function compactSetting(value) {
  if (typeof value !== "number") {
    const text = setting(value).replace(/\s+/g, " ");
    if (text.length <= LONGEST) return text;
    const name = /^[^ ]+\/([^/ ]+)\/?$/.exec(text)?.[1] ?? "";
    return name ? `…/${name}` : `${text.slice(0, LONGEST)}…`;
  }
  const short = Number.isInteger(value) ? value : Number(value.toPrecision(3));
  return Math.abs(short) === 1e-3 ? short.toExponential() : setting(short);
}

export function count(value) {
  const known = toNumber(value);
  return known === null ? "" : Number.isFinite(known) ? Math.round(known).toLocaleString("en-US") : number(known);
}

/** An amount of hours or energy: as a whole number where its digits before the point say enough. */
export function amount(value) {
  const known = toNumber(value);
  return known !== null && Math.abs(known) >= 100 ? count(known) : compact(known);
}

const POWERS = ["", "k", "M", "B", "T"];
export function compact(value, digits = 3) {
  const known = toNumber(value);
  if (known === null || !Number.isFinite(known)) return number(value);
  const size = Math.abs(known);
  if (size >= 1e15 || (size && size < 1e-3))
    return minus(String(Number(known.toPrecision(digits)).toExponential()).replace("e+", "e"));
  const power = size >= 1000 ? Math.min(4, Math.floor(Math.log10(size) / 3)) : 0;
  const scaled = Number((known / 1000 ** power).toPrecision(digits));
  return minus(`${scaled}${POWERS[power]}`);
}

/** Ticks of an axis with as many digits as it takes to tell them apart. */
export function tickTexts(all) {
  if (all.every((value) => Math.abs(value) < 1e-2) && all.some(Boolean)) return smallTexts(all);
  for (let digits = 2; digits < 7; digits++) {
    const texts = all.map((value) => compact(value, digits));
    const isTrue = all.every(
      (value, at) => Math.abs(Number(value.toPrecision(digits)) - value) < 1e-3 * Math.abs((all[1] ?? value) - all[0]),
    );
    if (isTrue && new Set(texts).size === texts.length) return aligned(texts);
  }
  return all.map((value) => compact(value, 7));
}

function smallTexts(all) {
  const near = 1e-3 * Math.abs((all[1] ?? 2 * all[0]) - all[0]);
  for (let digits = 0; digits < 6; digits++) {
    const isTrue = all.every((value) => Math.abs(Number(value.toExponential(digits)) - value) < near);
    if (isTrue) return all.map((value) => (value ? minus(value.toExponential(digits)) : "0"));
  }
  return all.map((value) => minus(value.toExponential(6)));
}

/** 2.5 beside 2.45 becomes 2.50. */
function aligned(texts) {
  const decimals = texts.map((text) => /^−?\d+(?:\.(\d+))?$/.exec(text));
  if (decimals.some((found) => !found)) return texts;
  const most = Math.max(...decimals.map((found) => found[1]?.length ?? 0));
  return texts.map((text) => (text === "0" ? text : minus(Number(text.replace("−", "-")).toFixed(most))));
}

const SIZES = ["bytes", "kB", "MB", "GB", "TB"];
const BINARY_SIZES = ["bytes", "KiB", "MiB", "GiB", "TiB"];
export const bytes = (value) => size(value, 1000, SIZES);
export const binaryBytes = (value) => size(value, 1024, BINARY_SIZES); // of a GPU's memory

function size(value, base, names) {
  const known = toNumber(value);
  if (known === null || !Number.isFinite(known)) return number(value);
  const power = known >= 1 ? Math.min(4, Math.floor(Math.log(known) / Math.log(base))) : 0;
  const scaled = known / base ** power;
  return `${power && scaled < 100 ? scaled.toPrecision(3) : Math.round(scaled)} ${names[power]}`;
}

export function duration(seconds) {
  const known = toNumber(seconds);
  if (known === null || !Number.isFinite(known)) return "";
  if (known > 0 && known < 0.1) return `${Number((1000 * known).toPrecision(2))} ms`;
  if (known < 60) return `${known < 10 ? Number(known.toFixed(1)) : Math.round(known)} s`;
  if (known < 3600) return `${Math.floor(known / 60)} min ${Math.round(known % 60)} s`;
  if (known < 48 * 3600) return `${Math.floor(known / 3600)} h ${Math.floor((known % 3600) / 60)} min`;
  return `${Math.floor(known / 86400)} d ${Math.floor((known % 86400) / 3600)} h`;
}

/** As a clock shows it: 1:05, or 2:03:00. */
export function clock(seconds) {
  const two = (part) => String(part).padStart(2, "0");
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (Math.abs(seconds) < 60) return `${Number(seconds.toFixed(2))} s`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

export function share(value, digits = 1) {
  const known = toNumber(value);
  return known === null ? "" : Number.isFinite(known) ? `${(100 * known).toFixed(digits)} %` : number(known);
}

export function moment(value) {
  if (value === null || value === undefined || value === "") return null;
  const date = new Date(typeof value === "number" ? 1000 * value : value);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function ago(value) {
  const date = moment(value);
  if (!date) return "";
  const seconds = (Date.now() - date.getTime()) / 1000;
  if (seconds < 90) return seconds < 5 ? "now" : `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return seconds < 60 * 86400 ? `${Math.round(seconds / 86400)} d ago` : date.toISOString().slice(0, 10);
}

export function when(value) {
  const date = moment(value);
  if (!date) return "";
  const two = (part) => String(part).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${[date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")}`;
}

/** `learning_rate` as words; a path keeps its section where it is needed. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

export function plural(amount, noun, many = `${noun}s`) {
  return `${count(amount)} ${amount === 1 ? noun : many}`;
}

export function capitalized(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}
