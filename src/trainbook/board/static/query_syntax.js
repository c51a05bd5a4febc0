// The language of the search, by examples.

import { h } from "./dom.js";

const QUERY_EXAMPLES = [
  ["small", "names and tags that contain this word; -small: those that do not"],
  ["learning_rate>1e-3", "a knob, a fact or a metric, compared with > >= < <= = !="],
  ["status:failed", "a text that contains this; status:failed,abandoned: either of them"],
  ["validation_loss<3 tag:good", "several terms: all must match"],
];

export function querySyntax() {
  return h(
    "dl",
    { class: "keys" },
    QUERY_EXAMPLES.map(([example, what]) => [h("dt", {}, h("code", {}, example)), h("dd", {}, what)]),
  );
}
