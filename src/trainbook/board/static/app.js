// The board: which page is shown, and what all pages share.

import { Live, get, keepToken, login, takeTokenFromAddress } from "./api.js";
import { announce, button, fill, h, link, showFolderAs } from "./dom.js";
import { closePanel } from "./panel.js";
import { listenToKeys, showHelp } from "./shortcuts.js";
import { tellWholeTexts } from "./whole_text.js";

const NAV = [
  ["/", "Runs"],
  ["/plan", "Plan"],
  ["/data", "Data"],
  ["/open", "Open"],
];
const PAGES = [
  [/^\/$/, "Runs", () => import("./runs.js")],
  [/^\/run\/([^/]+)$/, "Run", () => import("./run.js")],
  [/^\/compare$/, "Compare", () => import("./compare.js")],
  [/^\/study\/([^/]+)$/, "Study", () => import("./study.js")],
  [/^\/plan$/, "Plan", () => import("./plan.js")],
  [/^\/data$/, "Data", () => import("./data.js")],
  [/^\/open$/, "Open a run", () => import("./open.js")],
];
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

const main = document.getElementById("main");
let page = null; // with update(), close(), keys and onLive, as far as it has them
let path = null;
let live = null;
let turn = 0;

const board = { sources: [], actions: false, demo: false, version: "" };

async function route() {
  closePanel();
  if (page?.update && path === location.pathname) return update();
  page?.close?.();
  page = null;
  live?.close();
  path = location.pathname;
  const mine = ++turn;
  markNav();
  const found = PAGES.map(([pattern, title, load]) => [pattern.exec(path), title, load]).find(([match]) => match);
  if (!found) return tellNothing();
  const [match, title, load] = found;
  document.title = `${title} – Trainbook`;
  main.setAttribute("aria-busy", "true");
  const before = main.firstChild;
  const waiting = setTimeout(
    () => main.firstChild === before && fill(main, h("p", { class: "empty", role: "status" }, "Loading …")),
    300,
  );
  try {
    const { open } = await load().catch((error) => {
      throw Object.assign(error, { isOfModule: true });
    });
    if (mine !== turn) return;
    const put = (...content) => mine === turn && fill(main, ...content); // a page that was left meanwhile shows nothing
    const opened = await open({ put, id: match[1] ? decodeURIComponent(match[1]) : null, board, go, refresh });
    if (mine !== turn) return opened?.close?.();
    page = opened ?? {};
    listenLive();
  } catch (error) {
    if (mine === turn) tellError(error);
  } finally {
    clearTimeout(waiting);
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

function tellNothing() {
  document.title = "No such page – Trainbook";
  fill(main, h("h1", {}, "No such page"), h("p", {}, "The board has no page at this address. ", link("/", "All runs")));
  page = {};
  listenLive();
}

/** Without an answer the page stays as it is: the notice says so, and the page is refreshed when the server is back. */
async function update() {
  try {
    await page.update();
  } catch (error) {
    if (error.status !== 0) tellError(error);
  }
}

function tellError(error) {
  if (error.name === "AbortError") return;
  if (error.asksForToken) return askForToken();
  if (error.status === 0 || (error.isOfModule && isFirstReload())) return waitForServer(error.isOfModule);
  const own = error.isOfModule ? "A file of the board cannot be loaded." : `The page failed: ${error.message}`;
  fill(
    main,
    h("h1", {}, "This page cannot be shown"),
    h("p", { class: "error-text" }, error.status ? error.message : own),
    h("p", {}, button("Try again", error.isOfModule ? reload : refresh), " ", link("/", "All runs")),
  );
  if (!error.status) console.error(error);
  page = {};
  listenLive();
}

// The server is away

const RELOADED = "trainbook-reloaded"; // when the page was last loaded anew for a file that could not be loaded
const PATIENCE = 10_000; // milliseconds in which a second failure of a file is told

function isFirstReload() {
  return Date.now() - Number(sessionStorage.getItem(RELOADED)) > PATIENCE;
}

/** Shown as soon as the server answers. Browsers remember that a module could not be loaded: that needs a new page. */
function waitForServer(isOfModule) {
  const again = isOfModule ? reload : refresh;
  fill(
    main,
    h("h1", {}, "The board does not answer"),
    h("p", {}, "Is trainbook board still running? This page appears by itself as soon as the board answers."),
    h("p", {}, button("Try again", again)),
  );
  const mine = turn;
  page = { onLive: { hello: () => setTimeout(() => mine === turn && again(), 200) } };
  listenLive();
}

async function reload() {
  try {
    await get("/api/board");
  } catch (error) {
    if (error.status === 0) return announce("The board does not answer yet");
  }
  sessionStorage.setItem(RELOADED, Date.now());
  location.reload();
}

function askForToken() {
  tellConnection("");
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const submit = async (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    await login();
    refresh();
  };
  fill(
    main,
    h("h1", {}, "This board needs its token"),
    h(
      "p",
      {},
      "The terminal in which trainbook board runs printed an address that ends in #token=…. ",
      "Open that address, or enter the token here.",
    ),
    h(
      "form",
      { class: "line", on: { submit } },
      h("label", { for: "token" }, "Token"),
      field,
      h("button", { type: "submit" }, "Open the board"),
    ),
  );
  field.focus();
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  scrollTo(0, 0);
  return route().then(() => main.focus({ preventScroll: true }));
}

/** Files that are dropped anywhere are opened: the browser itself would leave the board for them. */
function listenToDrops() {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    const files = [...event.dataTransfer.files]; // which are gone after a pause
    if (!page?.take) await go("/open");
    page?.take?.(files);
  });
}

function refresh() {
  path = null;
  return route();
}

function markNav() {
  const nav = document.getElementById("nav");
  fill(
    nav,
    NAV.map(([href, name]) => h("a", { href, "aria-current": isHere(href) ? "page" : null }, name)),
  );
}

function isHere(href) {
  return href === "/" ? /^\/($|run\/|compare|study\/)/.test(location.pathname) : location.pathname.startsWith(href);
}

// Live events: one connection for the page in view. A hidden page has none, as browsers allow six to a server.

function listenLive() {
  live?.close();
  live = null;
  if (document.hidden) return tellConnection("");
  const mine = page;
  const { params = {}, ...handlers } = mine.onLive ?? {};
  live = new Live(params, handlers, (state) => {
    tellConnection(state === "lost" ? "lost" : "live");
    if (state === "back") mine.refresh?.();
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) live?.close();
  else if (page) {
    listenLive();
    page.refresh?.();
  }
});

let hasLost = false;
function tellConnection(state) {
  const told = document.getElementById("connection");
  told.dataset.state = state;
  told.textContent = { live: "live", lost: "not connected" }[state] ?? "";
  const notice = document.getElementById("notice");
  clearTimeout(tellConnection.timer);
  if (state === "lost") {
    hasLost = true;
    notice.hidden = false;
    notice.textContent = "The board does not answer. Showing the last data received. Reconnecting …";
  } else if (hasLost && state === "live") {
    hasLost = false;
    notice.textContent = "Connected again.";
    tellConnection.timer = setTimeout(() => (notice.hidden = true), 4000);
  } else if (!hasLost) notice.hidden = true;
}

// Theme

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function turnTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const names = ["auto", ...(isDark ? ["light", "dark"] : ["dark", "light"])]; // each press but the last is seen
  const next = names[(names.indexOf(theme()) + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  localStorage.setItem("trainbook-theme", next);
  nameTheme();
  announce(THEMES[next]);
  dispatchEvent(new Event("themechange"));
}

function nameTheme() {
  const by = document.getElementById("theme");
  by.textContent = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme()];
  by.setAttribute("aria-label", `${THEMES[theme()]}. Change it`);
}

function followLink(event) {
  const at = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!at || !isPlain || at.hasAttribute("download") || at.target || event.defaultPrevented) return;
  const to = new URL(at.href);
  if (to.origin !== location.origin || (to.pathname === location.pathname && to.hash)) return;
  event.preventDefault();
  go(to.pathname + to.search);
}

async function start() {
  takeTokenFromAddress();
  nameTheme();
  document.getElementById("theme").addEventListener("click", turnTheme);
  const help = () => showHelp(page?.keys, page?.help?.());
  document.getElementById("help").addEventListener("click", help);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
  document.addEventListener("click", followLink);
  addEventListener("popstate", () => route());
  tellWholeTexts();
  listenToDrops();
  listenToKeys({ keys: () => page?.keys ?? [], help, go, turnTheme });
  markNav();
  await login();
  try {
    Object.assign(board, await get("/api/board"));
  } catch (error) {
    return tellError(Object.assign(error, { isOfModule: error.status === 0 })); // all of it begins anew
  }
  if (board.demo) for (const { path, name } of board.sources) showFolderAs(path, name);
  if (board.demo)
    document
      .querySelector(".brand")
      .append(h("span", { class: "tag", title: "Recorded runs, to look around" }, "demo"));
  await route();
}

start();
