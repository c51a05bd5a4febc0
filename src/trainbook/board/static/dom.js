// Elements out of data. What a run wrote enters the page as text only, never as markup, style or address.

const SVG = "http://www.w3.org/2000/svg";
const OURS = /^(\/(?!\/)|#|blob:)/;

export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** What stands between backticks in a sentence is code. */
export function withCode(text) {
  return text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
    else if (name === "href" && !OURS.test(value)) throw new Error("a link must stay on the board");
    else if (name !== "href" && /^(on|src$|srcdoc$)/.test(name)) throw new Error(`${name} is not set from data`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** The children that differ are replaced; whoever has the focus keeps it where an element of the same name is there. */
export function fill(element, ...children) {
  const name = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren();
  append(element, children);
  if (name) element.querySelector(`[data-focus="${CSS.escape(name)}"]`)?.focus({ preventScroll: true });
  return element;
}

export function button(label, action, props = {}) {
  return h("button", { type: "button", ...props, on: { click: action } }, label);
}

export function link(href, ...children) {
  return h("a", { href }, ...children);
}

export function table(columns, rows, { caption, label = caption, numeric = [] } = {}) {
  const cell = (tag, content, at, more = {}) =>
    h(tag, { ...more, class: numeric.includes(at) ? "number" : null }, content);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": label || columns.join(", ") },
    h(
      "table",
      {},
      caption ? h("caption", {}, caption) : null,
      columns.length
        ? h(
            "thead",
            {},
            h(
              "tr",
              {},
              columns.map((each, at) => (each ? cell("th", each, at, { scope: "col" }) : cell("td", "", at))),
            ),
          )
        : null,
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((each, at) => (at === 0 ? cell("th", each, at, { scope: "row" }) : cell("td", each, at))),
          ),
        ),
      ),
    ),
  );
}

const folders = new Map(); // of temporary folders: what is shown in place of their paths

export function showFolderAs(path, name) {
  folders.set(path, name);
}

/** A text in which a temporary folder has its name. */
export function withFolderNames(text) {
  return [...folders].reduce((all, [path, name]) => all.replaceAll(path, name), String(text));
}

/** What is copied has whole paths, so that it can be run anywhere. */
export function copyable(text) {
  const done = (event) => copy(text, event.currentTarget);
  const shown = withFolderNames(text);
  return h(
    "div",
    { class: "command" },
    h("code", { title: shown === text ? null : `Copy gives the whole path: ${text}` }, shown),
    button("Copy", done, { class: "small", "aria-label": `Copy the command ${shown}` }),
  );
}

async function copy(text, by) {
  try {
    await navigator.clipboard.writeText(text);
    by.textContent = "Copied";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(by.previousElementSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    by.textContent = "Selected: Ctrl+C";
  }
  setTimeout(() => (by.textContent = "Copy"), 1600);
}

export function save(name, content, type) {
  const href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href, download: fileName(name) }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

export function fileName(name) {
  return (
    name
      .replace(/[^\w.=@+-]+/g, "-")
      .replace(/^[-.]+/, "")
      .slice(0, 120) || "trainbook"
  );
}

export function csv(columns, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const isFormula = /^[=+\-@\t\r]/.test(text) && !Number.isFinite(Number(text)); // to a spreadsheet
    const plain = isFormula ? `'${text}` : text;
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

let announced = "";
export function announce(text) {
  if (text === announced) return;
  announced = text;
  document.getElementById("announcer").textContent = text;
}
