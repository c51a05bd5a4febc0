// What a plan says: whether it fits, memory by part, time and cost, and what would help.

import { button, copyable, h, table } from "./dom.js";
import { amount, binaryBytes as bytes, capitalized, compact, count, duration, number, share } from "./format.js";
import { PALETTE } from "./scale.js";

const PARTS = {
  // what each part of the memory is, as `trainbook plan` says it
  weights: "the parameters themselves",
  "optimizer state": "moments and other state of the optimizer",
  gradients: "of trainable parameters",
  "whole weights": "gathered from other GPUs",
  "rounded weights": "16-bit copies for matrix products",
  activations: "kept for the backward pass",
  logits: "logits of each target, and the loss",
  temporary: "held only at that moment",
  snapshots: "copies of weights and optimizer state, to which the guard goes back after a spike",
  rounding: "allocation rounding in PyTorch",
  workspace: "of matrix products",
  fragmentation: "lost between tensors",
  context: "what CUDA and its libraries take before the first tensor",
  "beyond the formula": "measured, but not explained by the formula",
};

export function verdictText({ fits, peak, capacity }) {
  if (peak === undefined) return "";
  return `${fits === false ? "It does not fit" : "It fits"}: ${bytes(peak)}${capacity ? ` of ${bytes(capacity)}` : ""}`;
}

/** In a line, for a narrow window. */
export function planSummary(plan) {
  const { time, world } = plan;
  const hours = Number.isFinite(time?.hours) ? time.hours : null;
  const cost = Number.isFinite(time?.cost) ? dollars(time.cost) : hours === null ? "" : `${amount(hours * (world ?? 1))} GPU hours`;
  return [verdictText(plan), hours === null ? "" : duration(3600 * hours), cost].filter(Boolean).join(" · ");
}

/** `apply` takes over a suggestion. */
export function planResult(plan, apply) {
  const remarks = [...(plan.questions ?? []), ...(plan.notes ?? [])].map((each) =>
    h("p", { class: "dim" }, sentence(each)),
  );
  const command = plan.command ? [h("h3", {}, "The same on the command line"), copyable(plan.command)] : null;
  return [
    verdict(plan),
    facts(plan),
    memory(plan),
    suggestions(plan, apply),
    remarks,
    command,
    h("div", { class: "columns" }, moments(plan), batch(plan)),
  ];
}

function facts({ parameters, trained_parameters: trained, peak, capacity, sold_gb: sold, batch: shape, time, world }) {
  const gpuHours = Number.isFinite(time?.hours) ? time.hours * (world ?? 1) : null;
  const energy = time?.kwh ? `${amount(time.kwh)} kWh for the GPUs` : "";
  const rows = [
    ["Parameters", compact(parameters, 4), trained !== parameters ? `${compact(trained, 4)} trained` : ""],
    ["Peak memory", bytes(peak), capacity ? `of ${capacityText(capacity, sold)} on each GPU` : ""],
    ["Time per step", time?.seconds_per_step ? duration(time.seconds_per_step) : "", `${compact(shape?.tokens)} tokens`],
    [
      "Speed",
      time?.tokens_per_second ? `${compact(time.tokens_per_second)} tokens/s` : "",
      time?.utilization ? `${share(time.utilization, 0)} of the GPU's peak` : "",
    ],
    ["Total time", time?.hours ? duration(3600 * time.hours) : "", time?.steps ? `${count(time.steps)} steps` : ""],
    ["GPU hours", gpuHours === null ? "" : amount(gpuHours), energy],
    [
      "Cost",
      gpuHours === null ? "" : Number.isFinite(time.cost) ? dollars(time.cost) : "not known",
      Number.isFinite(time?.cost) ? "" : "enter the price of a GPU hour",
    ],
  ];
  const shown = rows.filter(([, value]) => value !== "");
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value, more]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value), more ? h("dd", { class: "more" }, more) : null),
    ),
  );
}

function dollars(value) {
  const digits = value < 100 ? 2 : 0;
  return `$${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** What a program finds is less than what is printed on the GPU, and counted by 1024. */
function capacityText(capacity, sold) {
  return `${bytes(capacity)}${sold ? ` (sold as ${sold} GB)` : ""}`;
}

function verdict({ fits, peak, capacity, gpu }) {
  if (fits === null || fits === undefined) return null;
  const left = capacity - peak;
  return h(
    "p",
    { class: `verdict ${fits ? "good" : "bad"}` },
    fits
      ? `✓ It fits on ${gpu ?? "the GPU"}, with ${bytes(left)} to spare`
      : `✕ It does not fit on ${gpu ?? "the GPU"}: ${bytes(-left)} too much`,
  );
}

function memory({ memory: parts, peak, capacity, sold_gb: sold, gpu, moment }) {
  const whole = Math.max(peak, capacity ?? 0);
  const sorted = Object.entries(parts).sort((a, b) => b[1] - a[1]);
  const part = (size) => `${((100 * size) / whole).toFixed(3)}%`;
  const bar = h(
    "div",
    {
      class: "memory",
      role: "img",
      "aria-label": `Memory by part: ${sorted.map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}`,
    },
    sorted.map(([name, size], at) =>
      h("span", {
        title: `${titleOf(name)}: ${bytes(size)}`,
        style: { width: part(size), background: `var(--c${at % PALETTE})`, opacity: at < PALETTE ? 1 : 0.6 },
      }),
    ),
  );
  const rows = sorted.map(([name, size], at) => [
    h("span", { title: titleOf(name) }, name, PARTS[name] ? h("span", { class: "dim what-part" }, PARTS[name]) : null),
    h("span", {
      class: "bar-line",
      style: {
        width: `${(100 * size) / sorted[0][1]}%`,
        background: `var(--c${at % PALETTE})`,
        opacity: at < PALETTE ? 1 : 0.6,
      },
    }),
    h("span", { class: "number" }, bytes(size)),
  ]);
  const limit = capacity
    ? h(
        "div",
        { class: "memory-limit", style: { left: part(capacity) } },
        h("span", { class: capacity / whole > 0.5 ? "before" : null }, `limit ${capacityText(capacity, sold)}`),
      )
    : null;
  return [
    h("div", { class: "memory-host" }, bar, limit),
    h(
      "p",
      { class: "dim" },
      `Memory of one GPU at the fullest moment${moment ? `, ${moment}` : ""}. The bar's whole width is `,
      capacity >= peak
        ? "the memory of the GPU."
        : `what would be needed${capacity ? `; the line is the limit of the ${gpu ?? "GPU"}` : ""}.`,
    ),
    h("div", { class: "bars section" }, rows),
  ];
}

function titleOf(name) {
  return PARTS[name] ? `${capitalized(name)}: ${PARTS[name]}` : name;
}

function suggestions({ suggestions: fitting = [], faster = [] }, apply) {
  const shown = [
    ...fitting.map((each) => ["What makes it fit", each]),
    ...faster.map((each) => ["What makes it faster", each]),
  ];
  if (!shown.length) return null;
  return h(
    "section",
    { class: "section" },
    [...new Set(shown.map(([title]) => title))].map((title) => [
      h("h2", {}, title),
      h(
        "ul",
        {},
        shown
          .filter(([own]) => own === title)
          .map(([, each]) =>
            h(
              "li",
              {},
              h("code", {}, each.override || `${each.world} GPUs`),
              ` ${bytes(each.peak)}`,
              each.slowdown && each.slowdown !== 1 ? `, ${number(each.slowdown, 2)}× the time` : "",
              each.why ? `: ${each.why} ` : " ",
              button("Apply", () => apply(each), {
                class: "small",
                "aria-label": `Apply ${each.override || each.world}`,
              }),
            ),
          ),
      ),
    ]),
  );
}

function moments({ moments: sizes }) {
  const rows = Object.entries(sizes ?? {})
    .sort((a, b) => b[1] - a[1])
    .map(([name, size]) => [name, bytes(size)]);
  return rows.length ? table(["moment", "memory"], rows, { caption: "Memory during a step", numeric: [1] }) : null;
}

function batch({ batch: shape, largest_micro_batch: largest, compute, compiled, parameters_by_part: byPart }) {
  if (!shape) return null;
  const rows = [
    ["sequences in a micro-batch", count(shape.micro_batch)],
    ["micro-batches in a step", count(shape.accumulation)],
    ["sequences in a step", count(shape.global_batch)],
    ["tokens in a step", count(shape.tokens)],
    ["largest micro-batch that fits", largest ? count(largest) : "none"],
    ["computed in", `${compute ?? ""}${compiled ? ", compiled" : ""}`],
    ...Object.entries(byPart ?? {}).map(([name, number]) => [`parameters: ${name}`, count(number)]),
  ];
  return table([], rows, { caption: "Batch and model", numeric: [1] });
}

/** The name of a knob stays as it is. */
function sentence(text) {
  const begins = /^\w+\.\w/.test(text) ? text : capitalized(text);
  return `${begins}${/[.?!]$/.test(text) ? "" : "."}`;
}
