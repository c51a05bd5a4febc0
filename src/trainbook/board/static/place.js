// What the address says of a page: filters, ranges and scales live there, so that a link shows the same.

export function params() {
  return new URLSearchParams(location.search);
}

/** `changes`: name → value, list of values, or null for the default. The browser's Back undoes a pushed one. */
export function change(changes, { push = false } = {}) {
  const now = params();
  for (const [name, value] of Object.entries(changes)) {
    now.delete(name);
    if (Array.isArray(value)) value.forEach((each) => now.append(name, each));
    else if (value !== null && value !== undefined && value !== "" && value !== false)
      now.set(name, value === true ? "1" : value);
  }
  const text = now.toString();
  const address = location.pathname + (text ? `?${text}` : "");
  if (address === location.pathname + location.search) return;
  history[push ? "pushState" : "replaceState"](null, "", address);
}

export function remembered(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`trainbook-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(name, value) {
  localStorage.setItem(`trainbook-${name}`, JSON.stringify(value));
}
