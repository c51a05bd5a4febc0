// Keys. A page brings its own: [key, what it does, action]; these are everywhere.

import { closePanel, isPanelOpen } from "./panel.js";
import { button, fill, h } from "./dom.js";

const COMMON = [
  ["?", "show these keys"],
  ["g r", "go to the runs"],
  ["g p", "go to the plan"],
  ["g d", "go to the data"],
  ["g o", "open a log from another tool"],
  ["T", "theme: light, dark or that of the system"],
  ["Esc", "close what is open; in a search field, empty it"],
];
const PLACES = { r: "/", p: "/plan", d: "/data", o: "/open" };

export function listenToKeys({ keys, help, go, turnTheme }) {
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape") return escape(event);
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const own = keys().find(([key]) => key === event.key);
    const action =
      isGoing && PLACES[event.key]
        ? () => go(PLACES[event.key])
        : event.key === "?"
          ? help
          : event.key === "T"
            ? turnTheme
            : own?.[2];
    isGoing = !isGoing && event.key === "g";
    if (!action) return;
    event.preventDefault();
    action(event);
  });
}

function isTyping(target) {
  return target.matches?.("input:not([type=checkbox]):not([type=range]), textarea, select, [contenteditable]");
}

/** A search field is emptied first. The browser's own way comes too late for one that loses the focus. */
function escape(event) {
  const { target } = event;
  if (isPanelOpen()) closePanel();
  else if (target.type === "search" && target.value) {
    event.preventDefault();
    target.value = "";
    target.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (isTyping(target)) target.blur();
  else document.dispatchEvent(new Event("dismiss"));
}

/** `more` stands below the keys: what else there is to know on this page. */
export function showHelp(own = [], more = null) {
  const rows = (keys) =>
    keys.map(([key, what]) => [
      h(
        "dt",
        {},
        key.split(" ").map((each) => h("kbd", {}, each)),
      ),
      h("dd", {}, what),
    ]);
  const part = (title, keys) => (keys.length ? [h("h3", {}, title), h("dl", { class: "keys" }, rows(keys))] : []);
  openDialog("Keyboard", [
    part(
      "On this page",
      own.filter((each) => each[1]),
    ),
    part("Everywhere", COMMON),
    more,
  ]);
}

export function openDialog(title, content, buttons = []) {
  const dialog = document.getElementById("dialog");
  const close = button("Close", () => dialog.close(), { class: "quiet" });
  dialog.setAttribute("aria-label", title);
  fill(dialog, h("h2", {}, title), content, h("p", { class: "line end" }, buttons, close));
  dialog.showModal();
  return dialog;
}
