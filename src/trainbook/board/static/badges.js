// Status, severity and kinds of marks: each with a shape of its own, never by colour alone.

import { h, svg } from "./dom.js";
import { plural } from "./format.js";

const SHAPES = {
  running: "M4 2.5 11 7 4 11.5Z",
  finished: "M2.5 7.5 5.5 10.5 11.5 3.5",
  failed: "M3 3 11 11M11 3 3 11",
  interrupted: "M4.5 3V11M9.5 3V11",
  abandoned: "M7 2.2A4.8 4.8 0 1 0 7 11.8A4.8 4.8 0 1 0 7 2.2M4 7H10",
  foreign: "M7 2 12 7 7 12 2 7Z",
  error: "M7 1.5 12.5 7 7 12.5 1.5 7ZM7 4.3V7.6M7 9.3V9.6",
  warning: "M7 2 12.5 12H1.5ZM7 5.8V8.6M7 10V10.3",
  info: "M7 1.8A5.2 5.2 0 1 0 7 12.2A5.2 5.2 0 1 0 7 1.8M7 6.5V10M7 4V4.3",
  skip: "M3 3 11 11M11 3 3 11",
  rollback: "M11.5 11V6.5A2.5 2.5 0 0 0 9 4H2.5M5.5 1 2.5 4 5.5 7",
  quarantine: "M7 2A5 5 0 1 0 7 12A5 5 0 1 0 7 2M3.5 3.5 10.5 10.5",
  remedy: "M7 2V11M3 7.5 7 11.5 11 7.5",
  oom: "M2 2H12V12H2ZM5 5H9V9H5Z",
  corruption: "M8 1 3.5 8H7L6 13 10.5 6H7Z",
  resume: "M2.5 2V12M5 2.5 11.5 7 5 11.5Z",
  checkpoint: "M3 2H9L12 5V12H3ZM5 2V5H9",
  finding: "M7 1.5 12.5 7 7 12.5 1.5 7ZM7 4.3V7.6M7 9.3V9.6",
};
const STATUSES = { complete: "finished", unfinished: "interrupted", damaged: "failed", diverged: "failed" }; // that look like another

export function icon(kind, size = 14) {
  return svg(
    "svg",
    { viewBox: "0 0 14 14", width: size, height: size, class: "icon", "aria-hidden": "true" },
    svg("path", {
      d: SHAPES[kind] ?? SHAPES.foreign,
      fill: kind === "running" ? "currentColor" : "none",
      stroke: "currentColor",
      "stroke-width": 1.6,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    }),
  );
}

export function statusBadge(status) {
  const known = ["running", "finished", "failed", "interrupted", "abandoned"];
  const kind = STATUSES[status] ?? (known.includes(status) ? status : "foreign");
  return h(
    "span",
    { class: `status ${kind}`, title: kind === "foreign" ? String(status) : null },
    icon(kind),
    h("span", { class: "status-word" }, String(status ?? "unknown")),
  );
}

export function severityBadge(severity) {
  return h("span", { class: `severity ${severity}` }, icon(severity), severity);
}

const RECORDED_NONE = "The run recorded no findings; the doctor's verdict on the whole run will appear here";

/** What the doctor found in a run, or why that is not known. */
export function findingCounts({ findings, is_judged: isJudged, problem, is_lost: isLost, verdict_problem: failure }) {
  if (!findings) return unjudged(problem || (isLost ? "Its metrics are lost" : ""), failure);
  const shown = ["error", "warning", "info"].filter((severity) => findings[severity]);
  const none = isJudged === false ? RECORDED_NONE : "The doctor found no errors, warnings or infos";
  if (!shown.length) return h("span", { class: "dim", title: none }, "none");
  return shown.map((severity) => {
    const told = plural(findings[severity], severity);
    return h(
      "span",
      { class: `severity plain ${severity}`, title: told },
      icon(severity),
      String(findings[severity]),
      h("span", { class: "unseen" }, ` ${told.split(" ")[1]}`),
    );
  });
}

function unjudged(reason, failure) {
  if (failure) return h("span", { class: "dim", title: `The doctor's rules failed on this run: ${failure}` }, "failed");
  if (reason) return h("span", { class: "dim", title: `The doctor cannot judge this run. ${reason}` }, "unknown");
  return h("span", { class: "dim", title: "The doctor has not read this run yet: its verdict will appear here" }, "not yet");
}
