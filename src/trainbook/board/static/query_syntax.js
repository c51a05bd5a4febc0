// The language of the search, by examples.

import { h } from "./dom.js";

const QUERY_EXAMPLES = [
  ["small", "names and tags with this word; -small: those without it"],
  ["learning_rate>1e-3", "a knob, a fact or a metric, compared by > >= < <= = !="],
  ["status:failed", "a text that holds another; status:failed,abandoned: one of them"],
  ["validation_loss<3 tag:good", "several terms: all must hold"],
];

export function querySyntax() {
  return h(
    "dl",
    { class: "keys" },
    QUERY_EXAMPLES.map(([example, what]) => [h("dt", {}, h("code", {}, example)), h("dd", {}, what)]),
  );
}
