// The runs page: all runs of the folders, found, sorted, grouped and chosen.

import { get, paced, post, runPath } from "./api.js";
import { announce, button, fill, h, link } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { statusBadge } from "./badges.js";
import { HINT, openForm, tagsIn } from "./labels.js";
import { change, params, remember, remembered } from "./place.js";
import { querySyntax } from "./query_syntax.js";
import { COLUMNS, groupRow, headRow, metricName, runRow } from "./run_rows.js";
import { arranged, commonnessOf, metricsOf } from "./run_order.js";
import { showHelp } from "./shortcuts.js";
import { VirtualRows } from "./virtual.js";

const MOST_STUDIES = 6; // more are folded

export async function open(context) {
  const page = new RunsPage(context);
  await page.load();
  return page;
}

class RunsPage {
  constructor({ put, board, go }) {
    Object.assign(this, { put, board, go });
    this.runs = new Map();
    this.studies = [];
    this.chosen = new Set();
    this.opened = new Set(); // groups that show their runs
    this.pinned = new Set(remembered("pinned", []));
    this.hidden = new Set(remembered("hidden", []));
    this.reload = paced(() => this.load().catch(() => {}), 2000);
    this.build();
    this.keys = [
      ["/", "search", () => this.search.focus()],
      ["j", "next run", () => this.rows.move(1)],
      ["k", "previous run", () => this.rows.move(-1)],
      ["Enter", "open the run"],
      ["x", "choose the run", () => this.onCurrent((item) => this.choose(item))],
      ["c", "compare the chosen runs", () => this.compare()],
      ["p", "pin or unpin the run", () => this.onCurrent((item) => this.pin(item))],
      ["h", "hide the run, or show a hidden one again", () => this.onCurrent((item) => this.hide([item]))],
      ["G", "group the runs that differ only in their seed", () => this.turn("group")],
    ];
    this.onLive = { params: {}, runs: (told) => this.hear(told) };
    this.ages = setInterval(() => this.rows.redraw(), 30_000);
  }

  build() {
    this.search = h("input", {
      type: "search",
      id: "search",
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": "query-error",
      placeholder: "Search, or learning_rate>1e-3 status:failed",
      title: "With nothing typed, ? shows the syntax",
      on: { input: () => this.type(), keydown: (event) => this.leaveSearch(event) },
    });
    this.error = h("p", { id: "query-error", class: "error-text", role: "alert" });
    this.counts = h("p", { class: "dim counts", role: "status" });
    this.tags = h("div", { class: "chips", role: "group", "aria-label": "Tags" });
    this.toggles = h("div", { class: "line" });
    this.strip = h("section", { class: "strip" });
    this.bar = h("div", { class: "choice-bar", role: "region", "aria-label": "Chosen runs", hidden: true });
    this.empty = h("div");
    this.rows = new VirtualRows({
      label: "Runs",
      head: headRow(this),
      key: (item) => item.key,
      draw: (item, index) => this.draw(item, index),
      heightOf: () => (matchMedia("(max-width: 760px)").matches ? 124 : 40),
    });
    const sort = h(
      "select",
      { id: "sort", on: { change: () => this.sortBy(sort.value) } },
      COLUMNS.filter((each) => each.sort).flatMap((each) =>
        [
          ["", "↑"],
          ["-", "↓"],
        ].map(([sign, arrow]) => h("option", { value: sign + each.sort }, `${each.title} ${arrow}`)),
      ),
    );
    this.sortSelect = sort;
    this.put(
      h("h1", { class: "unseen" }, "Runs"),
      h(
        "div",
        { class: "bar" },
        h("label", { for: "search", class: "unseen" }, "Search or filter the runs"),
        this.search,
        this.toggles,
        h("span", { class: "only-narrow line" }, h("label", { for: "sort" }, "Sort"), sort),
      ),
      this.error,
      h("div", { class: "line spread" }, this.counts, this.tags),
      this.strip,
      this.rows.element,
      this.empty,
      this.bar,
    );
    this.read();
  }

  /** What the address says. */
  read() {
    const place = params();
    this.query = place.get("q") ?? "";
    this.sort = place.get("sort") ?? "-updated";
    this.isGrouped = place.has("group");
    this.withArchived = place.has("archived");
    this.withHidden = place.has("hidden");
    this.withTrials = place.has("trials"); // of studies; a search finds them in any case
    if (document.activeElement !== this.search) this.search.value = this.query;
    this.sortSelect.value = this.sort;
  }

  async update() {
    this.read();
    await this.load();
  }

  ask() {
    this.load().catch((error) => (this.error.textContent = error.message));
  }

  async load() {
    this.asking?.abort();
    this.asking = new AbortController();
    let told;
    try {
      told = await get("/api/runs", { query: this.query, archived: this.withArchived ? 1 : null }, this.asking.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status !== 400) throw error;
      this.error.textContent = error.message;
      this.tellMistake(true);
      return;
    }
    this.error.textContent = "";
    this.tellMistake(false);
    this.runs = new Map(told.runs.map((run) => [run.id, run]));
    this.studies = told.studies ?? [];
    this.onLive.params.since = told.stamp;
    this.total = told.total ?? told.runs.length;
    this.hint = told.hint ?? "";
    this.show();
  }

  /** Of a query that cannot be read, the list below is still that of the query before. */
  tellMistake(isMistake) {
    if (isMistake) this.search.setAttribute("aria-invalid", "true");
    else this.search.removeAttribute("aria-invalid");
    this.rows.element.classList.toggle("outdated", isMistake);
    this.counts.hidden = this.empty.hidden = isMistake;
  }

  refresh() {
    this.reload();
  }

  /** Runs that changed. Whether they match a query only the server knows. */
  hear({ changed = [], removed = [], reload = false }) {
    this.tellFindings(changed);
    if (
      reload ||
      this.query ||
      changed.some((run) => !this.runs.has(run.id)) ||
      removed.length ||
      changed.some((run) => run.study)
    )
      this.reload();
    for (const run of changed) if (this.runs.has(run.id)) this.runs.set(run.id, run);
    for (const id of removed) this.runs.delete(id);
    this.show();
  }

  tellFindings(changed) {
    for (const run of changed) {
      const before = this.runs.get(run.id)?.findings;
      const isNew = run.status === "running"; // of a run that has ended, what was found long ago becomes known
      const more = (run.findings?.error ?? 0) - (before?.error ?? 0);
      if (isNew && before && more > 0) announce(`${run.name}: ${plural(more, "new error")} found by the doctor`);
    }
  }

  show() {
    const all = [...this.runs.values()].filter((run) => this.withArchived || !run.archived);
    const isWhole = this.withTrials || this.query || all.every((run) => run.study);
    const runs = isWhole ? all : all.filter((run) => !run.study);
    this.numTrials = all.filter((run) => run.study).length;
    const visible = this.withHidden ? runs : runs.filter((run) => !this.hidden.has(run.id));
    this.commonness = commonnessOf(visible);
    const compared = JSON.stringify([visible.map((run) => run.id)]);
    const isOther = compared !== this.compared; // what rows say of other rows
    this.compared = compared;
    const items = arranged(runs, {
      sort: this.sort,
      isGrouped: this.isGrouped,
      opened: this.opened,
      pinned: this.pinned,
      hidden: this.withHidden ? new Set() : this.hidden,
    });
    this.rows.set(items);
    if (isOther) this.rows.redraw();
    this.tellCounts(visible, runs.length - visible.length);
    this.showTags(runs);
    this.showStudies();
    this.showToggles(runs);
    this.showBar();
    for (const head of this.rows.element.querySelectorAll("[data-sort]")) {
      const own = head.dataset.sort;
      head.setAttribute("aria-sort", this.sort === own ? "ascending" : this.sort === `-${own}` ? "descending" : "none");
      if (own === "metric") head.firstChild.title = metricOrder(visible);
    }
    fill(this.empty, visible.length ? null : this.nothing(runs.length));
    document.title = "Runs – Trainbook";
  }

  nothing(numHidden) {
    const clear = button("Clear the search", () => this.setQuery(""));
    if (numHidden) {
      const matching = this.query ? ` that ${numHidden === 1 ? "matches" : "match"}` : "";
      return h(
        "p",
        { class: "empty line" },
        `${plural(numHidden, "run")}${matching}, all of them hidden. `,
        button("Show the hidden runs", () => this.turn("hidden"), { "data-focus": "show hidden" }),
        this.query ? clear : null,
      );
    }
    if (this.query)
      return h(
        "div",
        { class: "empty" },
        h("p", { class: "line", role: "status" }, `No run matches. ${this.hint}`, clear),
        querySyntax(),
      );
    const folders = this.board.sources.map(({ path, name }) => (path === "." ? name : path)).join(", ");
    return h(
      "div",
      { class: "empty" },
      h("p", {}, `There is no run in ${folders || "the folder"} yet. A new one appears here by itself.`),
      h(
        "p",
        {},
        "Start one with ",
        h("code", {}, "trainbook train gpt-tiny"),
        ", or ",
        link("/open", "open a log from another tool"),
        ".",
      ),
    );
  }

  /** What the list shows; of a search also of how many. Trials of studies are told apart from runs. */
  tellCounts(visible, numHidden) {
    const numTrials = visible.filter((run) => run.study).length;
    const numRuns = visible.length - numTrials;
    const parts = [];
    if (this.query) {
      parts.push(`${count(visible.length)} of ${plural(this.total, "run")}`);
      if (this.studies.length) parts.push("trials of studies included");
    } else {
      if (numRuns || !numTrials) parts.push(plural(numRuns, "run"));
      if (numTrials) parts.push(`${plural(numTrials, "trial")} of studies`);
    }
    const numRunning = visible.filter((run) => run.status === "running").length;
    if (numRunning) parts.push(`${numRunning} running`);
    if (numHidden) parts.push(`${numHidden} hidden`);
    const text = parts.join(", ");
    if (this.counts.textContent !== text) this.counts.textContent = text;
  }

  showTags(runs) {
    const counts = new Map();
    for (const run of runs) for (const tag of run.tags ?? []) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a.localeCompare(b)).slice(0, 12);
    const text = JSON.stringify(names.map((name) => [name, counts.get(name)]));
    if (text === this.tagsShown) return;
    this.tagsShown = text;
    fill(
      this.tags,
      names.map((name) =>
        button(`${name} ${counts.get(name)}`, () => this.setQuery(`${this.query} ${tagTerm(name)}`.trim()), {
          class: "chip",
          "data-focus": `tag ${name}`,
        }),
      ),
    );
  }

  showToggles(runs) {
    const numHidden = runs.filter((run) => this.hidden.has(run.id)).length;
    const toggle = (name, label, isOn) =>
      h(
        "button",
        {
          type: "button",
          class: "toggle",
          "aria-pressed": String(isOn),
          "data-focus": name,
          on: { click: () => this.turn(name) },
        },
        label,
      );
    const state = JSON.stringify([
      this.isGrouped,
      this.withArchived,
      this.withHidden,
      this.withTrials,
      numHidden,
      this.numTrials,
    ]);
    if (state === this.togglesShown) return;
    this.togglesShown = state;
    fill(
      this.toggles,
      toggle("group", "Group seeds", this.isGrouped),
      this.numTrials ? toggle("trials", `Trials of studies ${this.numTrials}`, this.withTrials) : null,
      toggle("archived", "Archived", this.withArchived),
      numHidden || this.withHidden ? toggle("hidden", `Hidden ${numHidden}`, this.withHidden) : null,
    );
  }

  showStudies() {
    const state = JSON.stringify(this.studies);
    if (state === this.studiesShown) return;
    this.studiesShown = state;
    this.strip.hidden = !this.studies.length;
    const [first, more] = [this.studies.slice(0, MOST_STUDIES), this.studies.slice(MOST_STUDIES)];
    const cards = (studies) => h("div", { class: "cards" }, studies.map(studyCard));
    fill(
      this.strip,
      h("h2", {}, "Studies"),
      cards(first),
      more.length ? h("details", {}, h("summary", {}, `${more.length} more`), cards(more)) : null,
    );
  }

  draw(item, index) {
    return item.runs ? groupRow(item, this) : runRow(item, this, index);
  }

  // What a person does

  type() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.setQuery(this.search.value), 180);
  }

  leaveSearch(event) {
    if (event.key === "?" && !this.search.value) {
      event.preventDefault();
      showHelp(this.keys, this.help());
    }
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.rows.focus(0);
    }
  }

  setQuery(query) {
    this.query = query.trim();
    if (document.activeElement !== this.search) this.search.value = this.query;
    change({ q: this.query });
    this.ask();
  }

  sortBy(name) {
    this.sort = name;
    this.sortSelect.value = name;
    change({ sort: name === "-updated" ? null : name });
    this.show();
  }

  turnSort(name, isDescendingFirst) {
    const [first, second] = isDescendingFirst ? [`-${name}`, name] : [name, `-${name}`];
    this.sortBy(this.sort === first ? second : first);
  }

  turn(name) {
    change({ [name]: !params().has(name) });
    this.read();
    if (name === "archived") this.ask();
    else this.show();
  }

  onCurrent(action) {
    const item = this.rows.current();
    if (item) action(item);
  }

  choose(item, isChosen = !this.isChosen(item)) {
    for (const run of item.runs ?? [item.run]) this.chosen[isChosen ? "add" : "delete"](run.id);
    this.rows.redraw();
    this.showBar();
  }

  isChosen(item) {
    return (item.runs ?? [item.run]).every((run) => this.chosen.has(run.id));
  }

  pin(item) {
    const ids = (item.runs ?? [item.run]).map((run) => run.id);
    const isPinned = ids.every((id) => this.pinned.has(id));
    ids.forEach((id) => this.pinned[isPinned ? "delete" : "add"](id));
    remember("pinned", [...this.pinned]);
    this.rows.redraw();
    this.show();
  }

  hide(items) {
    const ids = items.flatMap((item) => (item.runs ?? [item.run]).map((run) => run.id));
    const isHidden = this.isHidden(ids);
    ids.forEach((id) => this.hidden[isHidden ? "delete" : "add"](id));
    if (!isHidden && !this.withHidden) ids.forEach((id) => this.chosen.delete(id));
    remember("hidden", [...this.hidden]);
    announce(`${plural(ids.length, "run")} ${isHidden ? "shown again" : "hidden; press Hidden to show them"}`);
    this.show();
  }

  isHidden(ids) {
    return ids.every((id) => this.hidden.has(id));
  }

  openGroup(key) {
    this.opened[this.opened.has(key) ? "delete" : "add"](key);
    this.rows.redraw();
    this.show();
  }

  compare() {
    if (this.chosen.size > 1)
      this.go(`/compare?${[...this.chosen].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`);
    else announce("Choose two or more runs to compare them");
  }

  showBar() {
    for (const id of this.chosen) if (!this.runs.has(id)) this.chosen.delete(id);
    const amount = this.chosen.size;
    this.bar.hidden = !amount;
    const items = () => [...this.chosen].map((id) => ({ run: this.runs.get(id) }));
    fill(
      this.bar,
      h("strong", {}, plural(amount, "run"), " chosen"),
      button("Compare", () => this.compare(), { class: "primary", disabled: amount < 2, "data-focus": "compare" }),
      button(this.isHidden([...this.chosen]) ? "Show again" : "Hide", () => this.hide(items()), { "data-focus": "hide" }),
      this.board.actions ? button("Tag …", () => this.tagChosen(), { "data-focus": "tag" }) : null,
      button(
        "Clear",
        () => {
          this.chosen.clear();
          this.rows.redraw();
          this.showBar();
        },
        { class: "quiet", "data-focus": "clear" },
      ),
      this.board.actions ? null : h("span", { class: "dim" }, HINT),
    );
  }

  /** Runs of other tools have no tags. */
  tagChosen() {
    const ids = [...this.chosen].filter((id) => this.runs.get(id).kind !== "foreign");
    if (!ids.length) return announce("Runs of other tools cannot be tagged");
    const tags = h("input", { type: "text", id: "tags", autocomplete: "off" });
    const keep = async () => {
      const add = tagsIn(tags.value);
      if (!add.length) return;
      try {
        for (const id of ids) await post(runPath(id, "/tag"), { add, remove: [] });
      } finally {
        this.reload();
      }
      announce(`${plural(ids.length, "run")} tagged`);
    };
    const label = h("label", { for: "tags" }, "Tags, separated by spaces");
    openForm(`Tag ${plural(ids.length, "run")}`, [label, tags], keep);
  }

  help() {
    return [h("h3", {}, "Search"), querySyntax()];
  }

  close() {
    this.asking?.abort();
    clearInterval(this.ages);
    this.rows.close();
  }
}

function studyCard(study) {
  return h(
    "a",
    { class: "card", href: `/study/${encodeURIComponent(study.id)}`, "data-focus": study.id },
    h(
      "span",
      { class: "line" },
      h("strong", {}, study.name),
      h("span", { class: "dim" }, study.kind ?? "study"),
      statusBadge(study.status),
    ),
    h("span", { class: "card-text" }, study.headline ?? ""),
    h(
      "span",
      { class: "dim" },
      [study.trials ? plural(study.trials, "trial") : null, ago(study.updated)].filter(Boolean).join(" · "),
    ),
  );
}

/** How runs are sorted by this column: each metric for itself. */
function metricOrder(runs) {
  const told = metricsOf(runs).map(([name, amount]) => `${metricName(`eval:${name}`)} (${plural(amount, "run")})`);
  return told.length > 1 ? `Sorted within one metric: ${told.join(", then ")}` : "";
}

function tagTerm(name) {
  return /\s/.test(name) ? `tag:"${name}"` : `tag:${name}`;
}
