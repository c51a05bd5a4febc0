// Questions to the server, and its live events.

const TOKEN = "trainbook-token";

class Refused extends Error {
  constructor(message, status, asksForToken) {
    super(message);
    Object.assign(this, { status, asksForToken });
  }
}

export function token() {
  return sessionStorage.getItem(TOKEN);
}

export function keepToken(value) {
  sessionStorage.setItem(TOKEN, value);
}

/** The address that the terminal printed carries the token behind "#", which no server and no history needs. */
export function takeTokenFromAddress() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (!found) return;
  keepToken(decodeURIComponent(found[1]));
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function login() {
  return token() ? post("/api/login", { token: token() }).catch(() => null) : Promise.resolve(null);
}

export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, each);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export function get(path, params, signal) {
  return answer(fetch(address(path, params), { headers: headers(), signal }));
}

export function post(path, body) {
  return answer(
    fetch(path, {
      method: "POST",
      headers: { ...headers(), "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}

export function send(path, params, file) {
  const type = { "Content-Type": "application/octet-stream" };
  return answer(fetch(address(path, params), { method: "POST", headers: { ...headers(), ...type }, body: file }));
}

export function runPath(id, rest = "") {
  return `/api/runs/${encodeURIComponent(id)}${rest}`;
}

function headers() {
  return token() ? { "X-Trainbook-Token": token() } : {};
}

async function answer(asked) {
  const response = await asked.catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Refused("The board does not answer. Is trainbook board still running?", 0, false);
  });
  const text = await response.text();
  let told = null;
  try {
    told = JSON.parse(text);
  } catch {
    throw new Refused(`The board's answer cannot be read (status ${response.status}).`, response.status, false);
  }
  if (response.ok) return told;
  const asksForToken = response.status === 401 || (response.status === 403 && told.token === true);
  throw new Refused(told.error ?? `The board refused the request (status ${response.status}).`, response.status, asksForToken);
}

/** Server-sent events that come back by themselves. `onState` is told "live", "lost" and "back" (live again). */
export class Live {
  constructor(params, handlers, onState = () => {}) {
    Object.assign(this, { params, handlers, onState, wait: 500, wasLost: false, isClosed: false });
    this.open();
  }

  async open() {
    if (this.wasLost) await login(); // a server that was started again does not know this browser
    if (this.isClosed) return;
    const source = (this.source = new EventSource(address("/api/live", this.params)));
    source.onopen = () => {
      this.wait = 500;
      this.onState(this.wasLost ? "back" : "live");
      this.wasLost = false;
    };
    source.onerror = () => {
      source.close();
      if (this.isClosed) return;
      this.wasLost = true;
      this.onState("lost");
      this.timer = setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(2 * this.wait, 4000);
    };
    for (const [name, handle] of Object.entries(this.handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.source.close();
  }
}

/** At most one call at a time and one a `pause`; what is asked for meanwhile is done once afterwards. */
export function paced(action, pause) {
  let isBusy = false;
  let isAsked = false;
  const go = async () => {
    if (isBusy) {
      isAsked = true;
      return;
    }
    isBusy = true;
    isAsked = false;
    const ended = new Promise((done) => setTimeout(done, pause));
    try {
      await action();
    } finally {
      await ended;
      isBusy = false;
      if (isAsked) go();
    }
  };
  return go;
}
