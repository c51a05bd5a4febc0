// The strip of buttons above the first chart: what the guard did and what the doctor found, at its place.

import { append, button, copyable, h } from "./dom.js";
import { count, plural } from "./format.js";
import { icon, severityBadge } from "./badges.js";

const ROOM = 24; // pixels of a button: nearer ones stand together
const MOST_TITLES = 3; // in the label of a button
const RANK = { error: 0, warning: 1, info: 2 };
export const MARK_NAMES = {
  finding: "finding",
  skip: "skipped update",
  rollback: "rollback",
  quarantine: "quarantined samples",
  remedy: "lowered learning rate",
  oom: "out of memory",
  corruption: "suspect device",
  resume: "resume",
  checkpoint: "checkpoint",
};

export class MarkStrip {
  constructor(chart) {
    this.chart = chart;
    this.element = h("div", { class: "mark-strip", role: "group", "aria-label": "Marks on the curve" });
  }

  /** After each drawing: before it, uPlot does not know its scales yet. */
  place() {
    const { uplot, state } = this.chart;
    if (!uplot) return;
    const [low, high] = this.chart.viewX();
    const inView = (state.marks ?? []).filter((mark) => mark.x !== null && mark.x >= low && mark.x <= high);
    const placed = inView
      .map((mark) => ({ mark, left: uplot.over.offsetLeft + uplot.valToPos(mark.x, "x") }))
      .sort((a, b) => a.left - b.left);
    const groups = [];
    for (const each of placed) {
      const last = groups.at(-1);
      if (last && each.left - last.left < ROOM) last.marks.push(each.mark);
      else groups.push({ left: each.left, marks: [each.mark] });
    }
    const key = JSON.stringify(
      groups.map((group) => [Math.round(group.left), group.marks.map((mark) => [mark.kind, mark.step])]),
    );
    if (key === this.shown) return;
    this.shown = key;
    this.element.replaceChildren();
    append(
      this.element,
      groups.map((group) => this.buttonOf(group)),
    );
  }

  buttonOf({ left, marks }) {
    const worst = marks.toSorted((a, b) => (RANK[a.severity] ?? 3) - (RANK[b.severity] ?? 3))[0];
    const amount = marks.reduce((sum, mark) => sum + (mark.count ?? 1), 0);
    const label = amount === 1 ? `${titleOf(worst)}, ${stepsOf(marks, true)}` : labelOf(marks, amount, titleOf(worst));
    const made = button(
      [icon(worst.kind, 12), amount > 1 ? String(amount) : null],
      () => this.chart.onMarks?.(marks, this.element, left),
      { class: `mark ${worst.severity ?? "info"}`, "aria-label": label, title: label },
    );
    made.style.setProperty("left", `${left}px`);
    return made;
  }
}

function labelOf(marks, amount, worst) {
  const titles = [...new Set([worst, ...marks.map(titleOf)])];
  return `${plural(amount, "mark")} at ${stepsOf(marks)}: ${titles.slice(0, MOST_TITLES).join("; ")}${
    titles.length > MOST_TITLES ? " …" : ""
  }`;
}

/** Without the step, which the titles of some marks end in, and without a full stop. */
function titleOf(mark) {
  const title = mark.title || MARK_NAMES[mark.kind] || mark.kind;
  return title.replace(/,? steps? [\d,]+( to [\d,]+)?$/, "").replace(/\.$/, "");
}

/** Where the marks stand; `isWhole`: all steps that they speak of. */
function stepsOf(marks, isWhole = false) {
  const first = Math.min(...marks.map((mark) => mark.step));
  const last = Math.max(...marks.map((mark) => (isWhole || mark.count > 1 ? (mark.last ?? mark.step) : mark.step)));
  return first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
}

let shown = null;

function closePopover() {
  shown?.element.remove();
  if (shown?.opener?.isConnected) shown.opener.focus({ preventScroll: true });
  shown = null;
}

document.addEventListener("dismiss", closePopover);
document.addEventListener("pointerdown", (event) => {
  if (shown && !shown.element.contains(event.target)) {
    shown.element.remove();
    shown = null;
  }
});

/** The text of marks, under the place where they were asked for. `onFinding` opens the finding behind a mark. */
export function showMarks(marks, host, left, { onZoom, onFinding }) {
  closePopover();
  const opener = document.activeElement;
  const close = button("Close", closePopover, { class: "small" });
  const element = h(
    "div",
    { class: "popover", role: "dialog", "aria-label": "Marks" },
    marks.slice(0, 20).map((mark) => markText(mark, { onZoom, onFinding })),
    marks.length > 20 ? h("p", { class: "dim" }, `and ${marks.length - 20} more; zoom in to see them`) : null,
    h("p", { class: "line end" }, close),
  );
  host.append(element);
  const room = host.clientWidth - element.offsetWidth;
  element.style.setProperty("left", `${Math.max(0, Math.min(left - 40, room))}px`);
  element.style.setProperty("top", `${host.classList.contains("plot") ? 30 : host.offsetHeight + 2}px`);
  shown = { element, opener };
  close.focus({ preventScroll: true });
}

function markText(mark, { onZoom, onFinding }) {
  const [first, last] = [mark.first ?? mark.step, mark.last ?? mark.step];
  const steps = first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
  return h(
    "article",
    {},
    h(
      "h4",
      {},
      mark.severity && mark.kind === "finding" ? [severityBadge(mark.severity), " "] : [icon(mark.kind), " "],
      mark.title || MARK_NAMES[mark.kind] || mark.kind,
    ),
    /\bsteps? \d/.test(mark.title ?? "") ? null : h("p", { class: "dim" }, steps),
    mark.text && mark.text !== mark.title ? h("p", {}, mark.text) : null,
    mark.command ? copyable(mark.command) : null,
    h(
      "p",
      { class: "line" },
      onZoom
        ? button(
            "Zoom to it",
            () => {
              closePopover();
              onZoom(first, last);
            },
            { class: "small" },
          )
        : null,
      onFinding && Number.isInteger(mark.finding)
        ? button(
            "Show the finding",
            () => {
              closePopover();
              onFinding(mark.finding);
            },
            { class: "small" },
          )
        : null,
    ),
  );
}
