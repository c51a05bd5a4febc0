// The panel at the side: the dictionary entry of a knob, a mark of the guard, a sample.

import { get } from "./api.js";
import { button, fill, h } from "./dom.js";
import { showBlock } from "./blocks.js";
import { setting } from "./format.js";

const panel = () => document.getElementById("panel");
let opener = null;

export function isPanelOpen() {
  return !panel().hidden;
}

function openPanel(title, ...content) {
  if (panel().hidden) opener = document.activeElement;
  const close = button("Close", closePanel, { class: "quiet", "aria-label": "Close the panel" });
  panel().setAttribute("aria-label", title);
  fill(panel(), h("header", { class: "line" }, h("h2", {}, title), close), content);
  panel().hidden = false;
  panel().scrollTop = 0;
  close.focus({ preventScroll: true });
}

export function closePanel() {
  if (panel().hidden) return;
  panel().hidden = true;
  panel().replaceChildren();
  if (opener?.isConnected) opener.focus({ preventScroll: true });
}

export async function openKnob(path, own = []) {
  openPanel(path, h("p", { class: "dim" }, "…"));
  let content;
  try {
    const told = await get(`/api/explain/${encodeURIComponent(path)}`);
    content = [h("p", { class: "dim" }, `Default: ${setting(told.default)}`), told.blocks.map(showEntry)];
  } catch (error) {
    content = h("p", { class: "error-text" }, error.message);
  }
  if (isPanelOpen() && panel().getAttribute("aria-label") === path) openPanel(path, own, content);
}

function showEntry(block) {
  return [block.title ? h("h3", {}, block.title) : null, showBlock(block)];
}
