// What came of a remedy that was tried on a run: the verdict, the numbers, and what to do with it.

import { copyable, h, link } from "./dom.js";

export function runLink(id, name) {
  return link(`/run/${encodeURIComponent(id)}`, name);
}

export function triedRemedy({ rule, override, arms, verdict, reason, lines, command, next }) {
  return h(
    "section",
    { class: "tried", "aria-label": `Remedy of ${rule}` },
    h("h4", {}, "Remedy tried: ", verdict ?? "no result yet"),
    verdict ? h("p", {}, reason) : h("p", {}, `${override} is being tried, or its training was stopped early.`),
    lines.length
      ? h(
          "dl",
          { class: "tried-lines" },
          lines.map(([label, text]) => [h("dt", {}, label), h("dd", {}, text)]),
        )
      : null,
    command ? [h("p", {}, "To continue with it:"), copyable(command)] : null,
    next ? h("p", { class: "dim" }, "Next: ", next) : null,
    arms.length
      ? h(
          "p",
          { class: "line" },
          "Its runs:",
          arms.map((arm) => runLink(arm.id, arm.name)),
        )
      : null,
  );
}
