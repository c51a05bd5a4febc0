// Tags: how they are typed, and the dialogs that ask for them.

import { h } from "./dom.js";
import { openDialog } from "./shortcuts.js";

export const HINT = "Start the board with --allow-actions to tag runs.";

export function tagsIn(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** A dialog whose fields Enter saves, as the button does. */
export function openForm(title, fields, save) {
  const submit = (event) => {
    event.preventDefault();
    document.getElementById("dialog").close();
    save();
  };
  const form = h("form", { class: "fields", id: "dialog-form", on: { submit } }, fields);
  openDialog(title, form, [h("button", { type: "submit", form: "dialog-form", class: "primary" }, "Save")]);
}
