// One card: its controls, its picture, its answers, and what the store holds.

import { Answers } from "./answers.js";
import { Refusal, get, post, typed } from "./api.js";
import { duration, short } from "./layout.js";
import { pieces } from "./lua.js";
import { formula, project } from "./model.js";
import { HEIGHT, WIDTH, labelOf, pictureOf } from "./pictures.js";
import { html, say, svg, tell } from "./svg.js";

const MOST_BURST = 50;
const ALL = ""; // for errors that concern no single field
const cut = (text) => (text.length > 600 ? `${text.slice(0, 600)} …` : text);

export class Card {
  /** `definition` describes an algorithm, as the server sends it; `changed` is called when the card has changed its key. */
  constructor(definition, changed) {
    this.definition = definition;
    this.path = `/api/rate-limit/${definition.algorithm}`;
    this.changed = changed;
    this.snapshot = null;
    this.attempts = 0; // so far
    this.isVisible = true;
    this.fields = new Map();
    this.root = this.build();
  }

  build() {
    const { id, title, idea, picture, fields } = this.definition;
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, class: "picture" });
    this.draw = pictureOf(picture)(this.picture);
    this.remaining = html("strong", { class: "remaining" }, "–");
    this.of = html("span", {}, "");
    this.formula = html("span", { class: "formula" }, "");
    const status = html("p", { class: "sr-only", role: "status" });
    const list = html("ol", { class: "answers" });
    const box = html("div", { class: "box", tabindex: "0", role: "log", "aria-live": "off", "aria-label": `${title}: answers` }, list);
    this.answers = new Answers(list, status);
    const send = () => this.send("", {});
    const ten = () => this.send("/burst", { count: 10 });
    const many = () => this.send("/burst", { count: this.value("count"), concurrent: this.atOnce.checked });
    this.atOnce = html("input", { type: "checkbox", id: `${id}-at-once` });
    const trouble = html("p", { class: "error", id: `${id}-error`, role: "alert" });
    this.fields.set(ALL, { error: trouble, told: 0 });
    return html(
      "article",
      { class: "card", id, "aria-labelledby": `${id}-title` },
      html("h3", { id: `${id}-title` }, title),
      html("p", { class: "idea" }, idea),
      html("div", { class: "stage" }, this.picture),
      html("p", { class: "reading" }, this.remaining, this.of, this.formula),
      html(
        "form",
        { class: "controls", novalidate: true, onsubmit: (event) => (event.preventDefault(), send()) },
        html(
          "div",
          { class: "fields" },
          ...fields.map((field) => this.field({ ...field, label: labelOf(picture, field) })),
          this.field({ name: "cost", label: "Cost", unit: "", value: "1" }),
        ),
        html(
          "div",
          { class: "buttons" },
          html("button", { type: "submit", class: "primary" }, "Send request"),
          html("button", { type: "button", onclick: ten }, "Burst 10"),
        ),
        html(
          "details",
          { class: "more" },
          html("summary", {}, "Another burst"),
          html(
            "div",
            { class: "fields" },
            this.field({ name: "count", label: "Count", unit: `up to ${MOST_BURST}`, value: "20" }),
            html("label", { class: "check", for: this.atOnce.id }, this.atOnce, "all at once"),
            html("button", { type: "button", class: "burst", onclick: many }, "Send burst"),
          ),
        ),
        trouble,
      ),
      status,
      box,
      this.store(),
    );
  }

  field({ name, label, unit, value }) {
    const id = `${this.definition.id}-${name}`;
    const error = html("span", { class: "error", id: `${id}-error` });
    const input = html("input", { id, name, value, inputmode: "decimal", autocomplete: "off", "aria-describedby": `${id}-error` });
    if (name !== "count") input.addEventListener("input", () => this.later());
    this.fields.set(name, { input, error, told: 0 });
    return html("div", { class: "field" }, html("label", { for: id }, `${label} `, html("small", {}, unit)), input, error);
  }

  store() {
    const cell = () => html("dd", {});
    this.held = { key: cell(), raw: cell(), ttl: cell(), bytes: cell() };
    this.lua = html("pre", { class: "lua", tabindex: "0", role: "group", "aria-label": `Lua script of the ${this.definition.title}` });
    const script = html("details", {}, html("summary", {}, "The Lua that Redis runs"), this.lua);
    script.addEventListener("toggle", () => script.open && this.showLua());
    const names = { key: "Key", raw: "Raw value", ttl: "Expires in", bytes: "Size" };
    const rows = Object.entries(names).flatMap(([name, label]) => [html("dt", {}, label), this.held[name]]);
    return html("details", { class: "store" }, html("summary", {}, "What the store holds"), html("dl", {}, ...rows), script);
  }

  value(name) {
    return typed(this.fields.get(name).input.value);
  }

  body() {
    const config = { ...(this.definition.mode && { mode: this.definition.mode }) };
    for (const { name } of this.definition.fields) config[name] = this.value(name);
    return { config, cost: this.value("cost") };
  }

  async send(route, more) {
    const refusal = await this.attempt(async () => {
      const answer = await post(this.path + route, { ...this.body(), ...more });
      this.answers.add(Array.isArray(answer) ? answer : [answer]);
    }, [...this.fields.keys()]);
    if (refusal === null) {
      await this.refresh();
      this.changed();
    } else if (this.fields.has(refusal.field)) {
      tell(this.answers.status, refusal.message); // an error without a field is an alert
    }
  }

  /** Ask for the state of the key, a moment after the last keystroke. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), 100);
  }

  async refresh() {
    const asked = performance.now();
    await this.attempt(async () => {
      const snapshot = await post(`${this.path}/state`, this.body());
      const came = performance.now();
      if (this.asked > asked) return; // a later request was faster
      this.asked = asked;
      this.middle = (asked + came) / 2; // roughly when the store answered
      this.snapshot = snapshot;
      this.root.classList.toggle("is-away", snapshot.degraded);
      this.showStore();
      this.tick(came);
    }, [...this.fields.keys()].filter((name) => name !== "count")); // only bursts have a count
  }

  /** Run an action with these fields; show the server's error beside its field, and return it, or null. */
  async attempt(action, names) {
    const attempt = ++this.attempts;
    let refusal = null;
    try {
      await action();
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      refusal = error;
    }
    this.complain(refusal, names, attempt);
    return refusal;
  }

  /** Show the result of an attempt beside each of these fields, unless a later attempt has already shown its own. */
  complain(refusal, names, attempt) {
    const blamed = this.fields.has(refusal?.field) ? refusal.field : ALL;
    for (const name of names) {
      const field = this.fields.get(name);
      if (field.told > attempt) continue;
      field.told = attempt;
      const isAtFault = refusal !== null && name === blamed;
      say(field.error, isAtFault ? refusal.message : "");
      field.input?.setAttribute("aria-invalid", String(isAtFault));
    }
  }

  /** Draw the current state; `now` is the browser's clock in milliseconds. */
  tick(now) {
    this.answers.tick(now);
    if (this.snapshot === null) return;
    if (this.snapshot.state === null) {
      this.showPeek(this.snapshot.peek);
      return;
    }
    const elapsed = Math.max(0, (now - this.middle) / 1000);
    const view = project(this.snapshot, this.snapshot.now + elapsed);
    this.draw({ ...view, deniedFor: (now - this.answers.denied) / 1000 });
    say(this.remaining, String(view.remaining));
    say(this.of, ` of ${view.limit} left`);
    say(this.formula, formula(this.snapshot, view));
    const text = `${this.definition.title}: ${view.remaining} of ${view.limit} left`;
    if (this.picture.getAttribute("aria-label") !== text) this.picture.setAttribute("aria-label", text);
    this.picture.dataset.used = view.used.toFixed(4);
    const { ttl } = this.snapshot;
    say(this.held.ttl, ttl === null ? "–" : duration(Math.max(0, ttl - elapsed)));
  }

  /** While the store is away there is no state to draw: the picture does not change, and the number comes from a peek. */
  showPeek({ remaining, limit }) {
    say(this.remaining, String(remaining));
    say(this.of, ` of ${limit} left`);
    say(this.formula, "decided by this process only");
    this.picture.setAttribute("aria-label", `${this.definition.title}: last known state`);
  }

  showStore() {
    const { key, raw, bytes, state } = this.snapshot;
    if (state === null) {
      say(this.held.raw, "the store is unavailable");
      return;
    }
    say(this.held.key, key);
    say(this.held.raw, raw === null ? "empty: an unused key takes no space" : cut(raw));
    say(this.held.bytes, raw === null ? "–" : `${short(bytes)} bytes`);
  }

  async showLua() {
    if (this.lua.childElementCount) return;
    try {
      const source = await get(`/api/script/${this.definition.algorithm}`);
      this.lua.replaceChildren(...pieces(source).map(({ kind, text }) => html("span", { class: kind }, text)));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      say(this.lua, error.message);
    }
  }
}
