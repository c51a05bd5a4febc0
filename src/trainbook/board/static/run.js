// The page of a run: the verdict, the curves with what happened on them, and everything the run wrote down.

import { get, paced, post, runPath } from "./api.js";
import { announce, button, copyable, fill, h, link, svg, withCode, withFolderNames } from "./dom.js";
import { ago, capitalized, compact, count, duration, number, plural, when, words } from "./format.js";
import { severityBadge, statusBadge } from "./badges.js";
import { showSections } from "./blocks.js";
import { RunCurves } from "./curves.js";
import { openKnob } from "./panel.js";
import { bestName } from "./run_rows.js";
import { parts } from "./run_parts.js";
import { openForm, tagsIn } from "./labels.js";
import { openDialog } from "./shortcuts.js";
import { runLink, triedRemedy } from "./tried_remedy.js";

const ASK_AGAIN = [3, 5, 10, 20, 30]; // seconds between questions for a verdict that is pending
const TOLD_ELSEWHERE = [
  "Findings",
  "Curves",
  "Settings that differ",
  "All settings",
  "Quarantined samples",
  "Checkpoints",
];

export async function open(context) {
  const page = new RunPage(context);
  await page.load();
  return page;
}

class RunPage {
  constructor({ put, id, board, go }) {
    Object.assign(this, { put, id, board, go });
    this.reload = paced(() => this.load().catch((error) => this.failed(error)), 4000); // curves come sooner
    this.onLive = {
      params: { run: id },
      hello: () => this.told.summary.status === "running" && this.refresh(), // what was written before this connection
      run: () => this.refresh(),
      runs: (told) => {
        if (told.removed?.includes(id)) return this.tellGone();
        told.changed?.forEach((summary) => summary.id === id && this.hear(summary));
        if (told.changed?.some((summary) => summary.remedy_of?.run === id)) this.reload();
      },
    };
    this.keys = [
      ["f", "next finding", () => this.nextFinding()],
      ["r", "whole range", () => this.curves?.view.reset()],
      ["b", "next x axis: steps, tokens, time, FLOPs", () => this.nextBy()],
      ["s", "search the configuration", () => this.parts.configuration?.focus()],
      ["← →", "on a chart: read the values; with Shift: move the range"],
      ["+ −", "on a chart: zoom in and out; 0 shows all"],
    ];
    this.parts = {};
    this.finding = -1;
  }

  async load() {
    if (this.isClosed) return;
    const told = await get(runPath(this.id));
    if (this.isClosed) return;
    const before = this.told;
    this.told = told;
    this.onLive.params.since = told.version; // what came after this answer is told when the events begin
    if (!before) this.build();
    this.showHead(told);
    this.showFindings(told.findings ?? [], before);
    this.curves.tell(told);
    this.showParts(told, before);
    this.waitForVerdict(told.findings_state === "pending");
  }

  /** The live events tell of a verdict; this is for those who get none, as behind a proxy that holds them back. */
  waitForVerdict(isPending) {
    clearTimeout(this.waiting);
    this.numAsked = isPending ? (this.numAsked ?? -1) + 1 : -1;
    if (!isPending) return;
    const seconds = ASK_AGAIN[Math.min(this.numAsked, ASK_AGAIN.length - 1)];
    this.waiting = setTimeout(() => this.reload(), 1000 * seconds);
  }

  build() {
    this.head = h("div");
    this.findings = h("section", { class: "section", id: "verdict", "aria-label": "Findings" });
    this.curvesHost = h("section", { class: "section", id: "curves", "aria-label": "Curves" });
    this.problem = h("p", { class: "error-text", role: "alert" });
    this.jump = h("nav", { class: "jump", "aria-label": "On this page" });
    this.wide = h("div");
    this.narrow = h("div", { class: "newspaper" });
    this.put(this.head, this.problem, this.jump, this.findings, this.curvesHost, this.wide, this.narrow);
    this.curves = new RunCurves({
      id: this.id,
      name: this.told.summary.name,
      host: this.curvesHost,
      onFinding: (number) => this.showFinding(number),
    });
    this.curves.onZoom = () => this.curvesHost.scrollIntoView();
  }

  /** What was told of a run in another state no longer holds. */
  hear(summary) {
    const isOther = summary.status !== this.told.summary.status;
    this.showHead({ ...this.told, summary, headline: isOther ? "" : this.told.headline });
    if (isOther || this.told.findings_state === "pending") this.reload();
  }

  tellGone() {
    if (this.isClosed) return;
    const { name } = this.told.summary;
    this.close();
    this.put(
      h("p", { class: "crumbs" }, link("/", "Runs")),
      h("h1", {}, name),
      h("p", { class: "headline", role: "alert" }, "The folder of this run is gone: it was deleted, moved or renamed."),
      h("p", {}, link("/", "All runs")),
    );
  }

  /** Its files grew, or the server is back. */
  refresh() {
    if (this.isClosed) return;
    this.curves?.refresh();
    this.reload();
  }

  update() {
    if (!this.isClosed) this.curves?.readPlace();
  }

  failed(error) {
    if (error.status === 404) return this.tellGone();
    if (error.status) this.problem.textContent = error.message; // without a status the page's notice tells it
    this.waitForVerdict(this.told.findings_state === "pending");
  }

  showHead({ summary, headline, notices = [], problem }) {
    this.problem.textContent = "";
    document.title = `${summary.name} – Trainbook`;
    const state = JSON.stringify([summary, headline, notices, problem]);
    if (state === this.headShown) return;
    this.headShown = state;
    fill(
      this.head,
      h(
        "p",
        { class: "crumbs" },
        link("/", "Runs"),
        " / ",
        summary.source ?? "",
        summary.remedy_of ? [" / remedy tried on ", runLink(summary.remedy_of.run, summary.remedy_of.name)] : null,
        summary.study ? [" / ", link(`/study/${encodeURIComponent(summary.study)}`, "study")] : null,
      ),
      h(
        "div",
        { class: "title" },
        h("h1", {}, summary.name),
        statusBadge(summary.status),
        (summary.tags ?? []).map((tag) => h("span", { class: "tag" }, tag)),
        this.tools(summary),
      ),
      summary.note ? h("p", { class: "dim" }, summary.note) : null,
      h("p", { class: "headline" }, headline),
      problem ? h("p", { class: "error-text" }, problem) : null,
      notices.map((notice) => h("p", { class: "dim" }, withFolderNames(notice))),
      this.facts(summary),
    );
  }

  facts(summary) {
    const metric = summary.metric;
    const rows = [
      [
        "Step",
        summary.step === null || summary.step === undefined
          ? ""
          : [
              count(summary.step),
              summary.total_steps ? h("span", { class: "dim" }, ` of ${count(summary.total_steps)}`) : null,
              Number.isFinite(summary.progress)
                ? h("progress", { max: 1, value: summary.progress, "aria-label": "Progress" })
                : null,
            ],
      ],
      ["Time left", summary.status === "running" ? duration(summary.seconds_left) : ""],
      [
        metric ? capitalized(bestName(metric.name)) : "",
        metric
          ? [number(metric.value), metric.step ? h("span", { class: "dim" }, ` at ${count(metric.step)}`) : null]
          : "",
      ],
      ["Training loss", number(summary.loss)],
      ["Learning rate", summary.learning_rate ? compact(summary.learning_rate) : ""],
      [
        "Speed",
        summary.tokens_per_second
          ? [`${compact(summary.tokens_per_second)} ${this.told?.unit ?? "tokens"}/s`, h("span", { class: "dim" }, " (latest)")]
          : "",
      ],
      ["Parameters", summary.parameters ? compact(summary.parameters) : ""],
      [
        "Recipe",
        [summary.recipe, summary.task ? h("span", { class: "dim" }, ` ${words(summary.task)}`) : null].filter(Boolean),
      ],
      ["Started", summary.started ? h("span", { title: when(summary.started) }, ago(summary.started)) : ""],
      ["Last update", summary.updated ? h("span", { title: when(summary.updated) }, ago(summary.updated)) : ""],
    ];
    return h(
      "dl",
      { class: "facts" },
      rows
        .filter(([name, value]) => name && value && value.length !== 0)
        .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
  }

  /** Runs of other tools can only be looked at. */
  tools(summary) {
    const compare = link(`/compare?run=${encodeURIComponent(this.id)}`, "Compare …");
    if (summary.kind === "foreign") return h("span", { class: "tools" }, compare);
    const plan =
      this.told.has_config ? link(`/plan?run=${encodeURIComponent(this.id)}`, "Plan with its settings") : null;
    if (!this.board.actions) return h("span", { class: "tools" }, plan, compare);
    const act = (label, action, props) => button(label, action, { class: "small", ...props });
    const isRunning = summary.status === "running";
    const onEnded = () => [
      act("Try the remedy …", () => this.confirmTry(summary), {
        title: "doctor --try: experiments that find the cause",
      }),
      act("Delete …", () => this.confirmDelete(summary), { class: "small danger" }),
    ];
    return h(
      "span",
      { class: "tools" },
      plan,
      compare,
      isRunning ? act("Stop and save", () => this.confirmStop(summary)) : null,
      act("Tag or note", () => this.editLabels(summary)),
      act(summary.archived ? "Unarchive" : "Archive", () =>
        this.act("archive", { archived: !summary.archived }),
      ),
      isRunning ? null : onEnded(),
    );
  }

  async act(action, body) {
    try {
      const told = await post(runPath(this.id, `/${action}`), body);
      announce("Done");
      if (told.done) openDialog("Stopping", h("p", {}, told.done));
      if (told.started)
        openDialog("The remedy is being tried", [
          h("p", {}, "Its runs appear in the list, and its result on this page. The same on the command line:"),
          copyable(told.started),
        ]);
      if (action === "delete") return this.go("/");
      this.headShown = null;
      await this.load();
    } catch (error) {
      openDialog("The action failed", h("p", { class: "error-text" }, error.message));
    }
  }

  confirmStop(summary) {
    const yes = button(
      "Stop and save",
      () => {
        document.getElementById("dialog").close();
        this.act("stop", {});
      },
      { class: "primary" },
    );
    openDialog(
      `Stop ${summary.name}?`,
      h("p", {}, "The run saves a checkpoint and ends. trainbook resume continues it."),
      [yes],
    );
  }

  confirmTry(summary) {
    const rule = this.shownFindings?.[0]?.rule ?? null;
    const start = () => {
      document.getElementById("dialog").close();
      this.act("try", { rule });
    };
    openDialog(
      `Try the remedy of ${summary.name}?`,
      [
        h(
          "p",
          {},
          "This starts training on this machine: short runs with and without the change, each a quarter as long as ",
          "the run, or longer if the result is unclear.",
        ),
        rule ? h("p", {}, "Finding: ", this.shownFindings[0].title) : null,
      ],
      [button("Start training", start, { class: "primary" })],
    );
  }

  editLabels(summary) {
    const tags = h("input", { type: "text", id: "tags", value: (summary.tags ?? []).join(" ") });
    const note = h("input", { type: "text", id: "note", value: summary.note ?? "" });
    const keep = async () => {
      const [before, after] = [summary.tags ?? [], tagsIn(tags.value)];
      const [add, remove] = [
        after.filter((tag) => !before.includes(tag)),
        before.filter((tag) => !after.includes(tag)),
      ];
      await post(runPath(this.id, "/label"), { add, remove, note: note.value });
      announce("Done");
      this.headShown = null;
      this.reload();
    };
    const fields = [
      h("label", { for: "tags" }, "Tags, separated by spaces"),
      tags,
      h("label", { for: "note" }, "Note"),
      note,
    ];
    openForm(`Tags and note of ${summary.name}`, fields, keep);
  }

  confirmDelete(summary) {
    const folder = summary.remedy_of?.arm ?? summary.name;
    const name = h("input", {
      type: "text",
      id: "confirm",
      autocomplete: "off",
      on: { input: () => (yes.disabled = name.value !== folder) },
    });
    const yes = button(
      "Delete for good",
      () => {
        document.getElementById("dialog").close();
        this.act("delete", { confirm: name.value });
      },
      { class: "danger", disabled: true },
    );
    openDialog(
      `Delete ${summary.name}?`,
      [
        h("p", {}, "Its folder, with all checkpoints, will be removed. This cannot be undone."),
        h("label", { for: "confirm" }, `To confirm, type the run's name: ${folder}`),
        name,
      ],
      [yes],
    );
  }

  showFindings(findings, before) {
    const { told } = this;
    const isPending = told.findings_state === "pending";
    if (!isPending) this.verdict = { findings, checked: told.rules_checked, step: told.summary.step };
    const isKnown = findings.length > 0 || typeof told.rules_checked === "number";
    const known = isPending && isKnown ? { ...this.verdict, findings, checked: told.rules_checked } : this.verdict;
    const recorded = known ? [] : (told.events ?? []).filter((each) => each.kind === "finding");
    const tries = told.tries ?? [];
    const state = JSON.stringify([isPending, known, recorded, told.findings_state, told.findings_problem, tries]);
    if (state === this.findingsShown) return;
    this.findingsShown = state;
    if (before) {
      const titles = new Set((before.findings ?? []).map((each) => each.title));
      const fresh = findings.filter((each) => !titles.has(each.title));
      const what = before.findings_state === "pending" ? "Found" : "New finding";
      if (fresh.length) announce(`${what}: ${fresh.map((each) => each.title).join(" ")}`);
    }
    this.shownFindings = known?.findings ?? [];
    const rules = new Set(this.shownFindings.map((each) => each.rule));
    fill(
      this.findings,
      h(
        "h2",
        {},
        "Findings of the doctor",
        isPending && known ? h("span", { class: "as-of" }, asOf(known.step)) : null,
      ),
      this.shownFindings.length
        ? h("div", { class: "finding-cards" }, this.shownFindings.map((finding, at) => this.findingCard(finding, at)))
        : this.noFinding(known, recorded),
      tries.filter((each) => !rules.has(each.rule)).map(triedRemedy),
    );
  }

  noFinding(known, recorded) {
    if (!known)
      return [
        h("p", { class: "dim" }, "The doctor is reading the run …"),
        recorded.length
          ? h(
              "ul",
              { class: "recorded", "aria-label": "Findings during the run" },
              recorded.map((each) => h("li", {}, `Step ${count(each.step)}: ${each.text}`)),
            )
          : null,
      ];
    if (this.told.findings_state === "failed")
      return h(
        "p",
        { class: "error-text" },
        `The doctor's rules failed on this run. ${this.told.findings_problem ?? ""}`,
      );
    const checked = known.checked ? `, ${plural(known.checked, "rule")} checked` : "";
    return h(
      "p",
      { class: "all-well" },
      svg(
        "svg",
        { viewBox: "0 0 14 14", width: 16, height: 16, "aria-hidden": "true" },
        svg("path", { d: "M2.5 7.5 5.5 10.5 11.5 3.5", fill: "none", stroke: "currentColor", "stroke-width": 2 }),
      ),
      `No problem found${checked}.`,
    );
  }

  findingCard(finding, at) {
    const steps = finding.steps;
    const remedy = finding.remedy ? h("p", {}, h("strong", {}, "What helps: "), withCode(finding.remedy)) : null;
    return h(
      "article",
      { class: `finding ${finding.severity}`, id: `finding-${at}`, tabindex: -1 },
      h("h3", {}, severityBadge(finding.severity), " ", finding.title),
      h(
        "p",
        { class: "dim" },
        [finding.certainty, finding.rule ? `rule ${words(finding.rule)}` : null].filter(Boolean).join("; "),
      ),
      [finding.evidence]
        .flat()
        .filter(Boolean)
        .map((line) => h("p", {}, line)),
      finding.against ? h("p", { class: "dim" }, "It may follow from: ", finding.against) : null,
      remedy,
      finding.command ? copyable(finding.command) : null,
      (this.told.tries ?? []).filter((each) => each.rule && each.rule === finding.rule).map(triedRemedy),
      h(
        "div",
        { class: "line" },
        steps
          ? button(
              steps[0] === steps[1]
                ? `Show step ${count(steps[0])} on the curves`
                : `Show steps ${count(steps[0])} to ${count(steps[1])} on the curves`,
              () => this.curves.zoomToSteps(...steps),
              { class: "small", "data-focus": `finding ${at}` },
            )
          : null,
        finding.knob
          ? button(`About ${finding.knob}`, () => openKnob(finding.knob), { class: "small" })
          : null,
      ),
    );
  }

  showFinding(number) {
    const card = document.getElementById(`finding-${number}`);
    card?.scrollIntoView({ block: "center" });
    card?.focus({ preventScroll: true });
  }

  nextFinding() {
    const amount = this.shownFindings?.length ?? 0;
    if (amount) this.showFinding((this.finding = (this.finding + 1) % amount));
  }

  nextBy() {
    const ways = ["step", "tokens", "time", "flops"];
    this.curves.view.setBy(ways[(ways.indexOf(this.curves.view.by) + 1) % ways.length]);
  }

  /** A part is drawn again only where what it shows has changed: what a reader has opened stays open. */
  showParts(told) {
    const shown = parts(told, this);
    this.hosts ??= new Map();
    const places = new Map([
      [this.wide, null],
      [this.narrow, null],
    ]);
    for (const { name, title, data, draw, isNarrow } of shown) {
      if (!this.hosts.has(name)) this.hosts.set(name, h("section", { class: "section", id: name }));
      const host = this.hosts.get(name);
      const state = JSON.stringify([title, data]);
      if (state !== host.state) {
        host.state = state;
        fill(host, h("h2", {}, title), draw());
      }
      const column = isNarrow ? this.narrow : this.wide;
      const before = places.get(column);
      if ((before ? before.nextSibling : column.firstChild) !== host)
        column.insertBefore(host, before ? before.nextSibling : column.firstChild);
      places.set(column, host);
    }
    for (const [name, host] of this.hosts) if (!shown.some((each) => each.name === name)) host.remove();
    this.showReport(told.sections ?? []);
    const links = [["verdict", "Findings"], ["curves", "Curves"], ...shown.map((each) => [each.name, each.title])];
    const text = JSON.stringify(links);
    if (text === this.jumpShown) return;
    this.jumpShown = text;
    fill(
      this.jump,
      links.map(([name, title]) => h("a", { href: `#${name}` }, title)),
    );
  }

  showReport(sections) {
    const state = JSON.stringify(sections);
    if (state === this.reportShown) return;
    this.reportShown = state;
    this.report?.forEach((each) => each.remove());
    this.report = showSections(sections, TOLD_ELSEWHERE);
    this.narrow.append(...this.report);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.waiting);
    this.curves?.close();
  }
}

function asOf(step) {
  return `${Number.isInteger(step) ? `as of step ${count(step)}; ` : ""}updating`;
}
