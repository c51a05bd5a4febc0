// The blocks of a report: the same that `trainbook report` writes into a file.

import { copyable, h, table } from "./dom.js";
import { number, setting } from "./format.js";
import { severityBadge } from "./badges.js";

export function showBlock(block) {
  return (SHOWN[block.kind] ?? (() => null))(block);
}

const SHOWN = {
  text: (block) => h("p", {}, block.text),
  bullets: (block) =>
    h(
      "ul",
      {},
      block.lines.map((line) => h("li", {}, line)),
    ),
  listing: (block) => h("pre", { tabindex: 0, "aria-label": "Listing" }, h("code", {}, block.text)),
  commands: (block) => block.commands.map(([command, what]) => [h("p", { class: "what" }, what), copyable(command)]),
  table: (block) =>
    table(
      block.columns ?? [],
      block.rows.map((row) => row.map(cell)),
      { caption: block.caption, label: block.title },
    ),
  finding: (block) =>
    h(
      "article",
      { class: `finding ${block.severity}` },
      h("h3", {}, severityBadge(block.severity), " ", block.title),
      h("p", { class: "dim" }, block.certainty),
      block.lines.map((line) => h("p", {}, line)),
      block.command ? copyable(block.command) : null,
    ),
};

function cell(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "number" ? (Number.isInteger(value) ? setting(value) : number(value)) : setting(value);
}

/** Sections; those that are folded, or long, open on demand. */
export function showSections(sections, leaveOut = []) {
  return sections
    .filter((section) => !leaveOut.includes(section.title))
    .map((section) => {
      const blocks = section.blocks.map(showBlock);
      return section.is_folded
        ? h("details", { class: "section" }, h("summary", {}, h("h2", {}, section.title)), blocks)
        : h("section", { class: "section" }, h("h2", {}, section.title), blocks);
    });
}
