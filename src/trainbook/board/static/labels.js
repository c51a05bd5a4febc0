// Tags: how they are typed, and the dialogs that ask for them.

import { h } from "./dom.js";
import { openDialog } from "./shortcuts.js";

export const HINT = "Start the board with --allow-actions to tag runs.";

export function tagsIn(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** A dialog whose fields Enter saves, as the button does. What `save` throws is told in it, and what was typed stays. */
export function openForm(title, fields, save) {
  const problem = h("p", { class: "error-text", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await save();
      document.getElementById("dialog").close();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const form = h("form", { class: "fields", id: "dialog-form", on: { submit } }, fields, problem);
  openDialog(title, form, [h("button", { type: "submit", form: "dialog-form", class: "primary" }, "Save")]);
}
