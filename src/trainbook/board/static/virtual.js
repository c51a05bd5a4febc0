// Rows of one height, of which only those in view are elements: thousands cost no more than thirty.

import { h } from "./dom.js";

const AROUND = 8; // rows drawn above and below the view

export class VirtualRows {
  /** `draw(item, index)` makes the row's element; `key(item)` names it, so that an unchanged item keeps its element. */
  constructor({ label, head, draw, key, heightOf }) {
    Object.assign(this, { draw, key, heightOf });
    this.items = [];
    this.drawn = new Map(); // key → {item, index, element}
    this.cursor = null; // key of the row that the keys j and k stand on
    this.body = h("div", { role: "rowgroup", class: "rows-body" });
    this.element = h("div", { role: "table", class: "rows", "aria-label": label }, head, this.body);
    this.onScroll = () => requestAnimationFrame(() => this.update());
    addEventListener("scroll", this.onScroll, { passive: true });
    addEventListener("resize", this.onScroll, { passive: true });
    this.body.addEventListener("focusin", (event) => {
      this.cursor = event.target.closest("[data-key]")?.dataset.key ?? this.cursor;
    });
  }

  set(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", items.length + 1);
    this.update();
  }

  update() {
    const height = this.heightOf();
    this.body.style.setProperty("height", `${height * this.items.length}px`);
    const top = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / height) - AROUND);
    const last = Math.min(this.items.length, Math.ceil((top + innerHeight) / height) + AROUND);
    const kept = new Set();
    for (let index = first; index < last; index++) {
      const item = this.items[index];
      const key = this.key(item);
      kept.add(key);
      this.place(key, item, index, height);
    }
    for (const [key, { element }] of this.drawn) {
      if (kept.has(key)) continue;
      element.remove();
      this.drawn.delete(key);
    }
    this.reorder();
  }

  place(key, item, index, height) {
    let known = this.drawn.get(key);
    if (!known || known.item !== item) {
      const element = this.draw(item, index);
      element.dataset.key = key;
      const focus = known?.element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
      if (known) known.element.replaceWith(element);
      else this.body.append(element);
      if (focus) element.querySelector(`[data-focus="${focus}"]`)?.focus({ preventScroll: true });
      this.drawn.set(key, (known = { item, element }));
    }
    known.index = index;
    known.element.setAttribute("aria-rowindex", index + 2);
    known.element.style.setProperty("transform", `translateY(${index * height}px)`);
  }

  /** In the order of the items, which is the order of the tab key. The row that has the focus stays where it is. */
  reorder() {
    const wanted = [...this.drawn.values()].sort((a, b) => a.index - b.index).map((each) => each.element);
    if (wanted.every((element, at) => this.body.children[at] === element)) return;
    const at = wanted.findIndex((element) => element.contains(document.activeElement));
    if (at < 0) return this.body.append(...wanted);
    wanted[at].before(...wanted.slice(0, at));
    wanted[at].after(...wanted.slice(at + 1));
  }

  /** Drawn anew although the items are the same: what was chosen or pinned has changed. */
  redraw() {
    for (const known of this.drawn.values()) known.item = null;
    this.update();
  }

  move(by) {
    if (!this.items.length) return;
    const at = this.items.findIndex((item) => this.key(item) === this.cursor);
    this.focus(Math.min(this.items.length - 1, Math.max(0, at < 0 ? 0 : at + by)));
  }

  focus(index) {
    const height = this.heightOf();
    const top = this.body.getBoundingClientRect().top + index * height;
    const room = 120; // below the page's header and that of the table
    if (top < room) scrollBy(0, top - room);
    else if (top + height > innerHeight - 60) scrollBy(0, top + height - innerHeight + 60);
    this.update();
    this.cursor = this.key(this.items[index]);
    this.drawn.get(this.cursor)?.element.querySelector("[data-focus=name]")?.focus({ preventScroll: true });
  }

  current() {
    return this.items.find((item) => this.key(item) === this.cursor) ?? null;
  }

  close() {
    removeEventListener("scroll", this.onScroll);
    removeEventListener("resize", this.onScroll);
  }
}
