// A file of another tool: drop it, and see its curves with the doctor's verdict.

import { send } from "./api.js";
import { button, fill, h } from "./dom.js";
import { bytes } from "./format.js";

const MOST = 512 * 2 ** 20;

export async function open({ put, go }) {
  const told = h("div", { role: "status" });
  const chooser = h("input", { type: "file", id: "file", class: "unseen", on: { change: () => take(chooser.files) } });
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
      button("Choose a file", () => chooser.click(), { class: "primary", "data-focus": "choose" }),
    ),
    h("label", { for: "file", class: "unseen" }, "A log file"),
    chooser,
    told,
  );

  async function take(files) {
    const file = files?.[0];
    if (!file) return;
    if (file.size > MOST)
      return fill(
        told,
        h("p", { class: "error-text" }, `${file.name} has ${bytes(file.size)}; at most ${bytes(MOST)} can be opened.`),
      );
    fill(told, h("p", { class: "dim" }, `Reading ${file.name}, ${bytes(file.size)} …`));
    try {
      const { id } = await send("/api/open", { name: file.name }, file);
      go(`/run/${encodeURIComponent(id)}`);
    } catch (error) {
      fill(told, h("p", { class: "error-text" }, error.message));
    }
    chooser.value = "";
  }

  const over = (isOver) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    area.classList.toggle("over", isOver);
  };
  const drop = (event) => {
    over(false)(event);
    take(event.dataTransfer?.files);
  };
  const listeners = [
    ["dragover", over(true)],
    ["dragleave", over(false)],
    ["drop", drop],
  ];
  listeners.forEach(([name, handle]) => addEventListener(name, handle));
  put(
    h("h1", {}, "Open a run of another tool"),
    h(
      "p",
      {},
      "The file goes to the server of this board and nowhere else. It is read like a run of Trainbook: every point ",
      "counts, and the doctor says what it thinks. It is forgotten when the board ends.",
    ),
    area,
    h(
      "p",
      { class: "dim" },
      "A folder that holds such logs can also be named on the command line: ",
      h("code", {}, "trainbook board my-logs"),
      ".",
    ),
  );
  return {
    close: () => listeners.forEach(([name, handle]) => removeEventListener(name, handle)),
    keys: [["o", "choose a file", () => chooser.click()]],
  };
}
