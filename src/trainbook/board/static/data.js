// Reports on data sets, as `trainbook data … --json` wrote them.

import { get } from "./api.js";
import { copyable, fill, h, svg, table } from "./dom.js";
import { ago, bytes, compact, count, number, plural, share, words } from "./format.js";
import { severityBadge } from "./badges.js";
import { axes, extent, figure, path } from "./figure.js";
import { colour } from "./scale.js";
import { params } from "./place.js";

const MOST_CLASSES = 30;
const PADDING = {
  max_length: "padded to the maximum",
  longest: "padded to the longest of the batch",
  bucketed: "batches of similar length",
  packed: "several documents per row",
  windows: "windows of the stream",
};

export async function open({ put }) {
  const { reports } = await get("/api/data");
  const page = { keys: [], update: () => show() };
  function show() {
    const wanted = params().get("report");
    const at = Math.max(
      0,
      reports.findIndex((each) => each.name === wanted),
    );
    document.title = "Data – Trainbook";
    if (!reports.length) {
      return put(
        h("h1", {}, "Data"),
        h(
          "div",
          { class: "empty" },
          h("p", {}, "There is no data report in the folders of this board yet. Create one with"),
          copyable("trainbook data reviews.csv --task classify --json > runs/reviews.data.json"),
        ),
      );
    }
    const list = h(
      "nav",
      { class: "chips", "aria-label": "Reports" },
      reports.map((each, number) =>
        h(
          "a",
          {
            href: `/data?report=${encodeURIComponent(each.name)}`,
            "aria-current": number === at ? "page" : null,
            class: "chip",
          },
          titleOf(each),
        ),
      ),
    );
    put(
      h(
        "div",
        { class: "title" },
        h("h1", {}, titleOf(reports[at])),
        h("span", { class: "dim" }, [reports[at].source, ago(reports[at].updated)].filter(Boolean).join(", ")),
      ),
      reports.length > 1 ? list : null,
      report(reports[at]),
    );
  }
  show();
  return page;
}

function titleOf({ name }) {
  return name.replace(/\.data$/, "");
}

function report({ name, facts, samples = [] }) {
  return [
    headline(facts),
    findings(facts.findings ?? []),
    h("div", { class: "grid-2 section" }, histogram(facts, name), coverage(facts, name)),
    h(
      "div",
      { class: "newspaper" },
      sizes(facts),
      padding(facts),
      classes(facts),
      duplicates(facts),
      shift(facts),
      oddities(facts),
    ),
    sampleTexts(samples),
  ];
}

function headline(facts) {
  const { train } = facts.sides;
  const tokens = `${train.tokens_estimated ? "about " : ""}${compact(train.tokens)} tokens`;
  return h(
    "p",
    { class: "headline" },
    `${plural(train.documents, "training document")}, ${tokens} of the tokenizer ${facts.tokenizer} `,
    `(${count(facts.vocab_size)} entries), for the task ${words(facts.task)}.`,
  );
}

function findings(found) {
  if (!found.length) return h("p", {}, "No problem found.");
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Findings"),
    h(
      "div",
      { class: "finding-cards" },
      found.map((each) =>
        h(
          "article",
          { class: `finding ${each.severity}` },
          h("p", {}, severityBadge(each.severity), " ", each.text),
          each.override ? copyable(each.override) : null,
        ),
      ),
    ),
  );
}

function sizes({ sides }) {
  const names = Object.keys(sides);
  const row = (label, of) => [label, ...names.map((name) => of(sides[name]))];
  const rows = [
    row("documents", (side) => count(side.documents)),
    row("characters", (side) => count(side.characters)),
    row("bytes", (side) => bytes(side.bytes)),
    row("tokens", (side) => `${side.tokens_estimated ? "~" : ""}${count(side.tokens)}`),
    row("tokens per byte", (side) => number(side.tokens_per_byte, 3)),
    ...["50", "95", "99"].map((part) =>
      row(`${part} % have at most`, (side) => `${count(side.lengths.percentiles?.[part])} tokens`),
    ),
    row("longest", (side) => `${count(side.lengths.max)} tokens`),
  ];
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Size"),
    table(["", ...names.map((name) => (name === "train" ? "training" : name))], rows, {
      caption: "Counted on all documents; lengths on a sample where there are very many",
      numeric: names.map((name, at) => at + 1),
    }),
  );
}

function histogram({ sides, lengths }, name) {
  const bins = sides.train.lengths.histogram ?? [];
  if (!bins.length) return null;
  const isLog = bins.at(-1).to - bins.at(-1).from > 2 * (bins[0].to - bins[0].from) && bins[0].from > 0;
  return figure({
    title: "Lengths of training documents",
    name: `${name} lengths`,
    columns: ["from", "to", "documents"],
    rows: bins.map((bin) => [bin.from, bin.to, bin.documents]),
    draw(root, width, height) {
      const place = axes(root, width, height, {
        x: [bins[0].from, bins.at(-1).to],
        y: [0, Math.max(...bins.map((bin) => bin.documents))],
        xLog: isLog,
        xTitle: "tokens",
      });
      for (const bin of bins) {
        const bar = svg("rect", {
          x: place.x(bin.from) + 0.5,
          width: Math.max(1, place.x(bin.to) - place.x(bin.from) - 1),
          y: place.y(bin.documents),
          height: Math.max(0, place.y(0) - place.y(bin.documents)),
          fill: colour("c0"),
        });
        bar.append(
          svg("title", {}, `${count(bin.from)} to ${count(bin.to - 1)} tokens: ${plural(bin.documents, "document")}`),
        );
        root.append(bar);
      }
      for (const [key, tint] of [
        ["recommended", "c2"],
        ["configured", "dim"],
      ])
        marker(root, place, lengths[key], tint, key, height, [bins[0].from, bins.at(-1).to]);
    },
  });
}

function marker(root, place, length, tint, title, height, ends) {
  if (!length) return;
  const x = place.x(length);
  if (!Number.isFinite(x) || length < ends[0] || length > ends[1]) return;
  const line = svg("line", {
    x1: x,
    x2: x,
    y1: 10,
    y2: height - 34,
    stroke: colour(tint),
    "stroke-width": 1.5,
    "stroke-dasharray": title === "configured" ? "4 3" : null,
  });
  const y = title === "configured" ? height - 56 : height - 42; // one below the other where both are the same
  const label = svg("text", { x: x + 4, y, fill: colour("dim") }, `${title} ${count(length)}`);
  root.append(line, label);
}

function coverage({ lengths }, name) {
  const rows = lengths.curve ?? [];
  if (rows.length < 2) return null;
  return figure({
    title: "What each length keeps",
    name: `${name} coverage`,
    columns: ["positions", "tokens kept", "documents whole"],
    rows: rows.map((row) => [row.length, row.tokens_kept, row.documents_whole]),
    caption: "Blue: tokens. Orange, dashed: whole documents.",
    draw(root, width, height) {
      const place = axes(root, width, height, {
        x: extent(rows.map((row) => row.length)),
        y: [0, 1],
        xLog: true,
        xTitle: "positions",
        yText: (value) => (value >= 0 && value <= 1 ? share(value, 0) : ""),
      });
      root.append(
        path(
          rows.map((row) => [place.x(row.length), place.y(row.tokens_kept)]),
          colour("c0"),
          { width: 2 },
        ),
        path(
          rows.map((row) => [place.x(row.length), place.y(row.documents_whole)]),
          colour("c1"),
          { width: 2, dash: "6 3" },
        ),
      );
      for (const [key, tint] of [
        ["recommended", "c2"],
        ["configured", "dim"],
      ])
        marker(root, place, lengths[key], tint, key, height, extent(rows.map((row) => row.length)));
    },
  });
}

function bars(title, rows, note = "") {
  const most = Math.max(...rows.map((row) => row[1]), 1e-9);
  return h(
    "section",
    { class: "section" },
    h("h2", {}, title),
    note ? h("p", { class: "dim" }, note) : null,
    h(
      "div",
      { class: "bars" },
      rows.map(([name, value, text, tint = "c0"]) => [
        h("span", {}, name),
        h("span", { class: "bar-line", style: { width: `${(100 * value) / most}%`, background: `var(--${tint})` } }),
        h("span", { class: "number" }, text),
      ]),
    ),
  );
}

function padding({ padding: found }) {
  if (!found) return null;
  const waste = Object.entries(found.at_recommended_length ?? {}).filter(
    ([name]) => found.samples === "windows" || name !== "windows",
  );
  const note = (name) => ["recommended", "configured"].filter((each) => found[each] === name).join(", ");
  return bars(
    "Padding",
    waste.map(([name, value]) => [
      PADDING[name] ?? words(name),
      value,
      `${share(value)} ${note(name)}`,
      found.recommended === name ? "c2" : "c0",
    ]),
    `Share of positions that are padding, with ${count(found.micro_batch)} documents of ${count(found.length)} positions per batch.`,
  );
}

function classes({ sides }) {
  const counts = sides.train.labels?.counts;
  if (!counts) return null;
  const names = Object.keys(counts);
  const total = Object.values(counts).reduce((a, b) => a + b, 0);
  const more = names.length > MOST_CLASSES ? `The first ${MOST_CLASSES} of ${count(names.length)} classes.` : "";
  return bars(
    "Classes",
    names
      .slice(0, MOST_CLASSES)
      .map((name) => [name, counts[name], `${count(counts[name])}, ${share(counts[name] / total)}`]),
    more,
  );
}

function duplicates({ duplicates: found, contradictions }) {
  if (!found) return null;
  const rows = [
    ["copies in training", count(found.train.exact)],
    ["near copies in training", count(found.train.near)],
  ];
  if (found.between)
    rows.push(
      [
        "validation documents that are in training",
        `${count(found.between.exact)}, ${share(found.between.exact_share)}`,
      ],
      ["nearly in training", `${count(found.between.near)}, ${share(found.between.near_share)}`],
    );
  if (contradictions?.texts) rows.push(["texts with several labels", count(contradictions.texts)]);
  const pairs = [
    ...(found.between?.exact_examples ?? []),
    ...(found.between?.near_examples ?? []),
    ...found.train.exact_examples,
    ...found.train.near_examples,
  ].slice(0, 12);
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Duplicates"),
    table([], rows, { caption: found.method, numeric: [1] }),
    pairs.length
      ? table(
          ["one", "other", "similarity"],
          pairs.map((each) => [each.one, each.other, each.jaccard === undefined ? "identical" : number(each.similarity ?? each.jaccard, 2)]),
          { caption: "Examples", numeric: [2] },
        )
      : null,
  );
}

function shift({ shift: found }) {
  if (!found) return null;
  const rows = [];
  if (found.domain)
    rows.push([
      "separated by a classifier",
      found.domain.auc === null || found.domain.auc === undefined
        ? (found.domain.reason ?? "")
        : `AUC ${number(found.domain.auc, 3)}: ${found.domain.verdict ?? ""}`,
    ]);
  if (found.domain?.typical_of_validation)
    rows.push(
      ["typical of validation", found.domain.typical_of_validation.join(", ")],
      ["typical of training", found.domain.typical_of_train.join(", ")],
    );
  if (found.length)
    rows.push([
      "median length",
      `${count(found.length.median_train)} in training, ${count(found.length.median_validation)} in validation ` +
        `(KS ${number(found.length.ks_statistic, 3)})`,
    ]);
  if (found.tokens) rows.push(["unseen tokens in validation", share(found.tokens.unseen_tokens)]);
  if (found.labels)
    rows.push([
      "labels",
      `differ by ${share(found.labels.total_variation)}, most for ${found.labels.most_different ?? "none"}`,
    ]);
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Training against validation"),
    table([], rows, { caption: "How far the two splits differ" }),
  );
}

function oddities({ sides }) {
  const rows = Object.entries(sides).flatMap(([name, side]) => {
    const where = name === "train" ? "training" : name;
    const odd = [
      ["empty documents", side.empty_documents],
      ["damaged records", side.bad_records],
      ["replacement characters", side.replacement_characters?.documents],
      ["control characters", side.control_characters?.documents],
      ["repeated passages", side.repeats?.documents],
      ...Object.entries(side.leftovers ?? {}).map(([kind, each]) => [`left over: ${kind}`, each.documents]),
    ];
    return odd.filter(([, amount]) => amount).map(([what, amount]) => [where, what, count(amount)]);
  });
  const languages = Object.entries(sides.train.languages?.documents ?? {})
    .map(([name, amount]) => `${name} ${count(amount)}`)
    .join(", ");
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Oddities"),
    languages ? h("p", { class: "dim" }, `Languages of a sample of the training documents: ${languages}.`) : null,
    rows.length
      ? table(["split", "what", "documents"], rows, { caption: "Documents with", numeric: [2] })
      : h("p", {}, "None found."),
  );
}

function sampleTexts(samples) {
  if (!samples.length) return null;
  return h(
    "section",
    { class: "section" },
    h("h2", {}, "Samples"),
    h(
      "div",
      { class: "texts" },
      samples
        .slice(0, 50)
        .map((each) =>
          h(
            "article",
            { class: "text" },
            h(
              "p",
              { class: "dim" },
              [each.split, each.place ?? each.id, each.reason]
                .filter((part) => part !== null && part !== undefined && part !== "")
                .join(" · "),
            ),
            h("pre", { tabindex: 0, "aria-label": "Text of the sample" }, each.text ?? ""),
          ),
        ),
    ),
  );
}
