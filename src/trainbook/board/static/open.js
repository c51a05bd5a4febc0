// A file of another tool: drop it, and see its curves with the doctor's verdict.

import { send } from "./api.js";
import { button, fill, h, link } from "./dom.js";
import { bytes } from "./format.js";

const MOST = 512 * 2 ** 20;

export async function open({ put, go }) {
  const told = h("div", { role: "status" });
  const chooser = h("input", { type: "file", id: "file", multiple: true, class: "unseen", on: { change: () => take(chooser.files) } });
  const area = h(
    "div",
    { class: "drop" },
    h("p", {}, h("strong", {}, "Drop a log here")),
    h(
      "p",
      { class: "dim" },
      "A trainer_state.json of the Hugging Face trainer, an event file of TensorBoard, a .wandb file, ",
      "or a .csv or .tsv with a row for each step",
    ),
    h(
      "p",
      {},
      button("Choose files", () => chooser.click(), { class: "primary", "data-focus": "choose" }),
    ),
    h("label", { for: "file", class: "unseen" }, "A log file"),
    chooser,
    told,
  );

  async function take(files) {
    const [results, all] = [[], [...(files ?? [])]];
    for (const file of all) {
      fill(told, h("p", { class: "dim" }, `Reading ${file.name}, ${bytes(file.size)} …`));
      results.push(await read(file));
    }
    chooser.value = "";
    if (all.length === 1 && results[0].id) return go(runAddress(results[0].id));
    fill(told, results.map(resultOf));
  }

  const over = (isOver) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    area.classList.toggle("over", isOver);
  };
  const listeners = [
    ["dragover", over(true)],
    ["dragleave", over(false)],
    ["drop", over(false)],
  ];
  listeners.forEach(([name, handle]) => addEventListener(name, handle));
  put(
    h("h1", {}, "Open a run from another tool"),
    h(
      "p",
      {},
      "The file goes to the server of this board and nowhere else. It is read like a run of Trainbook, with all of its ",
      "points and the doctor's verdict, and discarded when the board ends.",
    ),
    area,
    h(
      "p",
      { class: "dim" },
      "You can also name a folder of such logs on the command line: ",
      h("code", {}, "trainbook board my-logs"),
      ".",
    ),
  );
  return {
    take, // files that were dropped on any page
    close: () => listeners.forEach(([name, handle]) => removeEventListener(name, handle)),
    keys: [["o", "choose a file", () => chooser.click()]],
  };
}

/** `{name, id}` of the run that it became, or `{name, problem}`. */
async function read(file) {
  const { name, size } = file;
  if (size > MOST) return { name, problem: `it is ${bytes(size)} large; at most ${bytes(MOST)} can be opened.` };
  try {
    return { name, id: (await send("/api/open", { name }, file)).id };
  } catch (error) {
    return { name, problem: error.message };
  }
}

function resultOf({ name, id, problem }) {
  return problem
    ? h("p", { class: "error-text" }, problem.startsWith(name) ? problem : `${name}: ${problem}`)
    : h("p", {}, link(runAddress(id), name), " was read.");
}

function runAddress(id) {
  return `/run/${encodeURIComponent(id)}`;
}
