// The parts of a run's page below the curves, each from one field of the answer.

import { button, fill, h, table, withFolderNames } from "./dom.js";
import { bytes, count, number, plural, setting, share, toNumber, when, words } from "./format.js";
import { icon } from "./badges.js";
import { openKnob } from "./panel.js";

const MOST_AT_ONCE = 8; // texts; more on demand
const MOST_CLASSES = 40;

export function parts(told, page) {
  const {
    configuration = [],
    samples = [],
    quarantined = [],
    generations = [],
    classes,
    checkpoints = [],
    events = [],
    card,
    totals = {},
  } = told;
  const newest = (all, total) => (total > all.length ? ` (the newest ${count(all.length)} of ${count(total)})` : "");
  return [
    classes ? { name: "classes", title: "Classes", data: classes, draw: () => classTables(classes) } : null,
    generations.length
      ? {
          name: "generations",
          title: `Generated texts${newest(generations, totals.generations)}`,
          data: generations,
          draw: () => generated(generations),
        }
      : null,
    configuration.length
      ? {
          name: "configuration",
          title: "Configuration",
          data: configuration,
          draw: () => configurationTable(configuration, page),
        }
      : null,
    quarantined.length
      ? {
          name: "quarantined",
          title: `Quarantined samples${newest(quarantined, totals.quarantined) || ` (${count(quarantined.length)})`}`,
          data: quarantined,
          draw: () => sampleTexts(quarantined, page),
        }
      : null,
    samples.length
      ? {
          name: "samples",
          title: `Samples${newest(samples, totals.samples)}`,
          data: samples,
          draw: () => sampleTexts(samples, page),
        }
      : null,
    events.length
      ? {
          name: "events",
          title: `Events${newest(events, totals.events)}`,
          data: events,
          draw: () => timeline(events, page),
        }
      : null,
    checkpoints.length
      ? {
          name: "checkpoints",
          title: "Checkpoints",
          isNarrow: true,
          data: checkpoints,
          draw: () => checkpointTable(checkpoints),
        }
      : null,
    card
      ? {
          name: "card",
          title: "Card",
          isNarrow: true,
          data: card,
          draw: () => h("pre", { tabindex: 0, "aria-label": "Card" }, withFolderNames(card)),
        }
      : null,
  ].filter(Boolean);
}

// Configuration

function configurationTable(rows, page) {
  const search = h("input", {
    type: "search",
    "aria-label": "Search the configuration",
    placeholder: "Search all knobs",
    on: { input: () => show() },
  });
  page.parts.configuration = search;
  const numDifferent = rows.filter((row) => row.differs).length;
  let isWhole = false;
  const all = h("button", {
    type: "button",
    class: "toggle",
    "aria-pressed": "false",
    on: {
      click: () => {
        isWhole = !isWhole;
        show();
      },
    },
  });
  const host = h("div");
  const show = () => {
    const text = search.value.trim().toLowerCase();
    const shown = rows.filter((row) =>
      text ? `${row.path} ${row.value} ${row.one_line ?? ""}`.toLowerCase().includes(text) : isWhole || row.differs,
    );
    all.setAttribute("aria-pressed", String(isWhole));
    all.textContent = `All ${rows.length} knobs`;
    fill(
      host,
      shown.length
        ? knobTable(shown)
        : h("p", { class: "dim" }, text ? "No knob matches." : "Nothing differs from the recipe."),
    );
  };
  show();
  return [
    h(
      "div",
      { class: "line" },
      h(
        "span",
        { class: "dim" },
        `${plural(numDifferent, "knob differs", "knobs differ")} from the recipe or the defaults.`,
      ),
      all,
      search,
    ),
    host,
  ];
}

function knobTable(rows) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Configuration" },
    h(
      "table",
      { class: "config" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Knob", "Value", "Recipe or default", "Set by"].map((each) => h("th", { scope: "col" }, each)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { class: row.differs ? "differs" : null },
            h(
              "th",
              { scope: "row" },
              button(row.path, () => openKnob(row.path, valueHere(row)), {
                class: "plain",
                title: row.one_line ?? "",
                "data-focus": row.path,
              }),
            ),
            h("td", { class: "value" }, setting(row.value)),
            h("td", { class: "dim" }, setting(row.usual)),
            h("td", { class: "dim" }, row.origin ?? ""),
          ),
        ),
      ),
    ),
  );
}

function valueHere(row) {
  return h(
    "p",
    {},
    "In this run: ",
    h("code", {}, setting(row.value)),
    row.differs ? h("span", { class: "dim" }, `, ${row.origin || "changed"}`) : null,
  );
}

// Texts

function sampleTexts(samples, page) {
  const draw = (sample) =>
    h(
      "article",
      { class: "text" },
      h(
        "p",
        { class: "dim" },
        [
          sample.id !== null && sample.id !== undefined ? `sample ${sample.id}` : null,
          sample.source,
          sample.loss !== null && sample.loss !== undefined ? `loss ${number(sample.loss)}` : null,
          sample.reason,
        ]
          .filter(Boolean)
          .join(" · "),
        " ",
        Number.isInteger(sample.step)
          ? button(`step ${count(sample.step)}`, () => page.curves.zoomToSteps(sample.step, sample.step), {
              class: "small",
              title: "Show on the curves",
            })
          : null,
      ),
      h("pre", { tabindex: 0, "aria-label": "Text of the sample" }, sample.text ?? ""),
    );
  return inParts(samples, draw);
}

function inParts(items, draw) {
  const host = h("div", { class: "texts" });
  let shown = 0;
  const more = button("", () => add(), { class: "small" });
  const add = () => {
    host.append(...items.slice(shown, shown + MOST_AT_ONCE).map(draw));
    shown = Math.min(items.length, shown + MOST_AT_ONCE);
    more.textContent = `${count(items.length - shown)} more`;
    more.hidden = shown >= items.length;
  };
  add();
  return [host, more];
}

/** First all prompts at the newest step, or a single prompt through the steps. */
function generated(generations) {
  const steps = [...new Set(generations.map((each) => each.step ?? 0))].sort((a, b) => b - a);
  const prompts = [...new Set(generations.map((each) => each.prompt ?? ""))];
  const host = h("div");
  const show = () => {
    const [at, which] = [step.selectedIndex - 1, prompt.selectedIndex - 1];
    const shown = generations.filter(
      (each) =>
        (at < 0 || (each.step ?? 0) === steps[at]) && (which < 0 || (each.prompt ?? "") === prompts[which]),
    );
    fill(
      host,
      inParts(
        shown.toSorted((a, b) => (b.step ?? 0) - (a.step ?? 0)),
        generatedText,
      ),
    );
  };
  const choice = (id, names) =>
    h(
      "select",
      { id, on: { change: show } },
      names.map((name) => h("option", {}, name)),
    );
  const step = choice("generation-step", ["All steps", ...steps.map((each) => `Step ${count(each)}`)]);
  const prompt = choice("prompt", ["All prompts", ...prompts.map((each) => each.slice(0, 80) || "(no prompt)")]);
  if (prompts.length > 1) step.selectedIndex = 1;
  show();
  return [
    h(
      "p",
      { class: "line" },
      h("label", { for: "generation-step" }, "Step"),
      step,
      h("label", { for: "prompt" }, "Prompt"),
      prompt,
    ),
    host,
  ];
}

function generatedText({ step, prompt, text, reference }) {
  const part = (name, content, kind) => [
    h("dt", {}, name),
    h("dd", {}, h("pre", { class: kind, tabindex: 0, "aria-label": `${name} at step ${step}` }, content)),
  ];
  return h(
    "article",
    { class: "text" },
    h("p", { class: "dim" }, `step ${count(step)}`),
    h(
      "dl",
      { class: "generation" },
      prompt ? part("Prompt", prompt, "prompt") : null,
      part("Generated", text ?? "", "answer"),
      reference === null || reference === undefined ? null : part("Reference", reference, "reference"),
    ),
  );
}

// Classes

function classTables({ step, labels, matrix, per_class: rows }) {
  const places = rows.map((row) => [
    row.label,
    share(row.precision),
    share(row.recall),
    row.f1 === null ? "" : number(row.f1, 3),
    count(row.support),
  ]);
  const own = table(["class", "precision", "recall", "F1", "samples"], places, {
    caption: "Per class",
    numeric: [1, 2, 3, 4],
  });
  const told =
    step === null || step === undefined
      ? null
      : h("p", { class: "dim" }, `On the validation data at step ${count(step)}.`);
  return [told, h("div", { class: "columns" }, own, matrix ? confusion(labels, matrix) : null)];
}

function confusion(labels, matrix) {
  const shown = labels.slice(0, MOST_CLASSES);
  const cells = (row, at) =>
    row.slice(0, MOST_CLASSES).map((value, other) => cell(value, row, at === other, labels[at], labels[other]));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Confusion matrix" },
    h(
      "table",
      { class: "matrix" },
      h(
        "caption",
        {},
        "Confusion matrix: a row for each true class, a column for each predicted one",
        labels.length > MOST_CLASSES ? `; the first ${MOST_CLASSES} of ${labels.length}` : null,
      ),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "true \\ predicted"),
          shown.map((label) => h("th", { scope: "col", title: label }, label)),
        ),
      ),
      h(
        "tbody",
        {},
        matrix
          .slice(0, MOST_CLASSES)
          .map((row, at) => h("tr", {}, h("th", { scope: "row", title: labels[at] }, labels[at]), cells(row, at))),
      ),
    ),
  );
}

/** Tinted by its share of the row; the number stands in it, so nothing hangs on the tint. */
function cell(value, row, isHit, truth, predicted) {
  const total = row.reduce((a, b) => a + (toNumber(b) ?? 0), 0);
  const part = total ? value / total : 0;
  return h(
    "td",
    {
      title: `${truth} predicted as ${predicted}: ${count(value)}, ${share(part)}`,
      style: {
        background: `color-mix(in srgb, var(${isHit ? "--good" : "--error"}) ${Math.round(38 * part)}%, transparent)`,
      },
    },
    value ? count(value) : h("span", { class: "dim" }, "0"),
  );
}

// Checkpoints and events

function checkpointTable(checkpoints) {
  const rows = checkpoints.map((each) => [count(each.step), (each.roles ?? []).join(", "), bytes(each.bytes)]);
  return table(["step", "", "size"], rows, { caption: "On disk", numeric: [2] });
}

function timeline(events, page) {
  const kinds = [...new Set(events.map((each) => each.kind))];
  const choice = h(
    "select",
    { id: "event-kind", on: { change: () => show() } },
    h("option", { value: "" }, `All ${count(events.length)}`),
    kinds.map((kind) => h("option", { value: kind }, words(kind))),
  );
  const list = h("ol", { class: "timeline", tabindex: 0, "aria-label": "Events, newest first" });
  const show = () => {
    const own = events.filter((each) => !choice.value || each.kind === choice.value);
    fill(
      list,
      own
        .toReversed()
        .slice(0, 600)
        .map((each) =>
          h(
            "li",
            {},
            Number.isInteger(each.step)
              ? button(count(each.step), () => page.curves.zoomToSteps(each.step, each.step), {
                  class: "plain dim",
                  "aria-label": `Step ${count(each.step)}: show on the curves`,
                  title: when(each.time),
                })
              : h("span"),
            h("span", { class: `kind ${each.level ?? "info"}` }, icon(each.kind, 12), words(each.kind)),
            h("span", {}, each.text),
          ),
        ),
    );
  };
  show();
  return [h("p", { class: "line" }, h("label", { for: "event-kind" }, "Kind"), choice), list];
}
