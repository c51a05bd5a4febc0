// What a run would need: turn the knobs, and see parameters, memory, time and cost at once.

import { get } from "./api.js";
import { button, fill, h, link } from "./dom.js";
import { capitalized, setting, words } from "./format.js";
import { openKnob } from "./panel.js";
import { change, params } from "./place.js";
import { planResult, planSummary, verdictText } from "./plan_result.js";

const OF_THE_RUN = ""; // among the recipes

export async function open(context) {
  const page = new PlanPage(context);
  await page.load();
  return page;
}

class PlanPage {
  constructor({ put }) {
    this.put = put;
    this.keys = [["/", "choose the recipe", () => document.getElementById("recipe")?.focus()]];
  }

  read() {
    const place = params();
    this.run = place.get("run"); // whose settings the plan begins with, in place of a recipe's
    this.recipe = this.run ? OF_THE_RUN : (place.get("recipe") ?? this.choices.recipes[0]?.name ?? "");
    this.gpu =
      place.get("gpu") ??
      (this.choices.gpus.find((each) => /^h100/i.test(each.name)) ?? this.choices.gpus[0])?.name ??
      "";
    this.gpus = place.get("gpus") ?? "1"; // as it was typed: the server says what is wrong with it
    this.price = place.get("price") ?? "";
    this.sets = new Map(
      place.getAll("set").map((each) => [each.slice(0, each.indexOf("=")), each.slice(each.indexOf("=") + 1)]),
    );
  }

  async load() {
    this.choices ??= await get("/api/plan/choices");
    this.read();
    this.fields = h("form", { class: "fields", on: { submit: (event) => event.preventDefault() } });
    this.result = h("div", { "aria-live": "off" });
    this.told = h("p", { class: "unseen", role: "status" });
    this.brief = h("p", { class: "plan-brief line", "aria-label": "Summary" });
    this.put(
      h("h1", {}, "Plan"),
      h("p", { class: "dim" }, "An estimate from formulas; nothing is trained. The GPU need not be in this machine."),
      this.brief,
      h(
        "div",
        { class: "plan section" },
        h("section", { "aria-label": "What would be trained" }, this.fields),
        h("section", { "aria-label": "What it would need", id: "plan-result" }, this.told, this.result),
      ),
    );
    await this.ask();
  }

  async update() {
    this.read();
    await this.ask();
  }

  /** The server is back. */
  refresh() {
    this.ask();
  }

  keep() {
    change({
      recipe: this.recipe || null,
      run: this.run,
      gpu: this.gpu,
      gpus: this.gpus === "1" ? null : this.gpus,
      price: this.price,
      set: [...this.sets].map(([path, value]) => `${path}=${value}`),
    });
    this.ask();
  }

  async ask() {
    this.asking?.abort();
    this.asking = new AbortController();
    this.result.setAttribute("aria-busy", "true");
    try {
      this.plan = await get(
        "/api/plan",
        {
          recipe: this.recipe,
          run: this.run,
          gpu: this.gpu,
          gpus: this.gpus,
          price: this.price,
          set: [...this.sets].map(([path, value]) => `${path}=${value}`),
        },
        this.asking.signal,
      );
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!this.plan || error.asksForToken) throw error;
      if (!error.status) return this.result.removeAttribute("aria-busy"); // it is asked again when the server is back
      this.plan = { errors: [error.message] };
    }
    this.result.removeAttribute("aria-busy");
    this.showFields();
    this.show();
  }

  // The knobs

  showFields() {
    const values = this.plan.values ?? this.values ?? {};
    this.values = values;
    const recipes = h(
      "select",
      {
        id: "recipe",
        "data-focus": "recipe",
        on: {
          change: () => {
            this.recipe = recipes.value;
            this.run = null;
            this.sets.clear();
            this.values = null;
            this.keep();
          },
        },
      },
      this.run ? h("option", { value: OF_THE_RUN }, `of the run ${this.runName()}`) : null,
      this.choices.recipes.map((each) => h("option", { value: each.name }, each.name)),
    );
    recipes.value = this.recipe;
    const gpus = h(
      "select",
      {
        id: "gpu",
        "data-focus": "gpu",
        on: {
          change: () => {
            this.gpu = gpus.value;
            this.keep();
          },
        },
      },
      this.choices.gpus.map((each) =>
        h("option", { value: each.name }, `${each.name}${each.gb ? `, ${Math.round(each.gb)} GB` : ""}`),
      ),
    );
    gpus.value = this.gpu;
    const amount = h("input", {
      type: "text",
      inputmode: "numeric",
      id: "gpus",
      value: this.gpus,
      "aria-invalid": isCount(this.gpus) ? null : "true",
      "data-focus": "gpus",
      on: {
        change: () => {
          this.gpus = amount.value.trim() || "1";
          this.keep();
        },
      },
    });
    const price = h("input", {
      type: "text",
      id: "price",
      value: this.price,
      placeholder: "not set",
      inputmode: "decimal",
      "data-focus": "price",
      on: {
        change: () => {
          this.price = price.value.trim();
          this.keep();
        },
      },
    });
    const recipe = this.choices.recipes.find((each) => each.name === this.recipe);
    fill(
      this.fields,
      field("recipe", "Recipe", recipes),
      this.run ? h("p", { class: "dim" }, "The settings of ", runLink(this.run, this.runName())) : null,
      recipe?.title && recipe.title !== recipe.name ? h("p", { class: "dim" }, recipe.title) : null,
      field("gpu", "GPU", gpus),
      field("gpus", "Number of GPUs", amount),
      field("price", "Price of a GPU hour in $", price),
      this.sections().map(([section, knobs]) => [
        h("h2", { class: "small-title" }, capitalized(section)),
        knobs.map((knob) => this.knob(knob, plain(values[knob.path]))),
      ]),
      this.sets.size
        ? h(
            "p",
            {},
            button(
              this.run ? "All as in the run" : "All as in the recipe",
              () => {
                this.sets.clear();
                this.keep();
              },
              { class: "small", "data-focus": "clear" },
            ),
          )
        : null,
    );
  }

  runName() {
    return this.plan.run?.name ?? this.run;
  }

  sections() {
    const found = new Map();
    for (const knob of this.choices.knobs) {
      const section = knob.path.split(".")[0];
      found.set(section, [...(found.get(section) ?? []), knob]);
    }
    return [...found];
  }

  knob(knob, value) {
    const id = `knob-${knob.path}`;
    const isSet = this.sets.has(knob.path);
    const now = isSet ? this.sets.get(knob.path) : value;
    const set = (next) => {
      if (next === "") this.sets.delete(knob.path);
      else this.sets.set(knob.path, next);
      this.keep();
    };
    const input =
      knob.kind === "choice" || knob.kind === "flag"
        ? this.select(knob, id, now, set)
        : h("input", {
            type: "text",
            inputmode: knob.kind === "text" ? null : "decimal",
            id,
            value: now,
            placeholder: "not set",
            "data-focus": id,
            on: { change: () => set(input.value.trim()) },
          });
    const about = button("?", () => openKnob(knob.path), {
      class: "about",
      title: knob.what ?? knob.path,
      "aria-label": `About ${knob.path}`,
      "data-focus": `about ${knob.path}`,
    });
    const name = h(
      "span",
      {},
      h("label", { for: id }, words(knob.path.split(".").at(-1))),
      about,
      isSet ? h("span", { class: "tag" }, "changed") : null,
    );
    const turner = this.slider(knob, now, set) ?? this.factors(knob, now, set);
    return h("div", { class: `field ${turner?.tagName === "SPAN" ? "with-factors" : ""}` }, name, input, turner);
  }

  select(knob, id, now, set) {
    const names = knob.kind === "flag" ? ["true", "false"] : (knob.choices ?? []).map(setting);
    const shown = now;
    const choice = h(
      "select",
      { id, "data-focus": id, on: { change: () => set(choice.value) } },
      (names.includes(shown) ? names : [shown, ...names]).map((name) =>
        h("option", { value: name }, name || "as in the recipe"),
      ),
    );
    choice.value = shown;
    return choice;
  }

  /** Half and double, which is how sizes of batches and models are turned. */
  factors(knob, now, set) {
    if (knob.kind !== "integer" || !(Number(now) > 0)) return null;
    const name = words(knob.path.split(".").at(-1));
    const by = (factor, sign, told) =>
      button(sign, () => set(String(Math.max(1, Math.round(Number(now) * factor)))), {
        class: "small",
        "aria-label": `${told} ${name}`,
        "data-focus": `${sign} ${knob.path}`,
      });
    return h("span", { class: "factors" }, by(0.5, "÷2", "Halve"), by(2, "×2", "Double"));
  }

  slider(knob, now, set) {
    const isNumber = knob.kind === "integer" || knob.kind === "number";
    if (!isNumber || !Number.isFinite(knob.low) || !Number.isFinite(knob.high) || !(Number(now) > 0)) return null;
    const isLog = knob.scale === "log" && knob.low > 0;
    const place = isLog ? Math.log2 : Number;
    const unplace = isLog ? (at) => 2 ** at : Number;
    const whole = (at) => (knob.kind === "integer" ? Math.round(unplace(at)) : Number(unplace(at).toPrecision(3)));
    const step = isLog
      ? 1
      : knob.kind === "integer"
        ? Math.max(1, Math.round((knob.high - knob.low) / 40))
        : (knob.high - knob.low) / 40;
    const slider = h("input", {
      type: "range",
      min: place(knob.low),
      max: place(knob.high),
      step,
      value: String(place(Number(now))),
      "aria-label": `${words(knob.path.split(".").at(-1))}, slider`,
      "aria-valuetext": String(now),
      "data-focus": `slider ${knob.path}`,
      on: {
        change: () => set(String(whole(Number(slider.value)))),
        input: () => (document.getElementById(`knob-${knob.path}`).value = String(whole(Number(slider.value)))),
      },
    });
    return slider;
  }

  show() {
    const { plan } = this;
    document.title = "Plan – Trainbook";
    const errors = (plan.errors ?? []).map((each) => h("p", { class: "error-text", role: "alert" }, each));
    this.told.textContent = verdictText(plan);
    const brief = [planSummary(plan) || (plan.errors ?? [])[0], plan.memory ? h("a", { href: "#plan-result" }, "Details") : null];
    fill(this.brief, brief);
    fill(this.result, errors, plan.memory ? planResult(plan, (each) => this.apply(each)) : null);
  }

  apply({ overrides = [], world }) {
    for (const each of overrides) this.sets.set(each.slice(0, each.indexOf("=")), each.slice(each.indexOf("=") + 1));
    if (world) this.gpus = String(world);
    this.keep();
  }

  close() {
    this.asking?.abort();
  }
}

/** A value as a field shows it: without the quotes of YAML, and empty where it is not set. */
function plain(value) {
  const text = setting(value ?? "");
  return text === "null" || text === "none" ? "" : text.replace(/^(["'])(.*)\1$/, "$2");
}

function runLink(id, name) {
  return link(`/run/${encodeURIComponent(id)}`, name);
}

function isCount(text) {
  return /^\d+$/.test(text) && Number(text) > 0;
}

function field(id, label, input) {
  return h("div", { class: "field" }, h("label", { for: id }, label), input);
}
