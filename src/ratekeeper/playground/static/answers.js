// The log of a card's answers: allowed with what remains, denied with a countdown, queued with its departure.

import { duration } from "./layout.js";
import { html, say, tell } from "./svg.js";

const MOST = 60;

/** Describe an answer in words; `elapsed` is how many seconds ago it came. */
export function words(answer, elapsed) {
  if (!answer.allowed) {
    if (answer.retryAfter === null) return { kind: "denied", mark: "✕", text: "denied: the cost exceeds the limit" };
    const left = answer.retryAfter - elapsed;
    return { kind: "denied", mark: "✕", text: left > 0 ? `denied, retry in ${duration(left)}` : "denied, can retry now" };
  }
  const left = `${answer.remaining} left`;
  if (!answer.delay) return { kind: "allowed", mark: "✓", text: `allowed, ${left}` };
  const wait = answer.delay - elapsed;
  const departs = wait > 0 ? `queued, departs in ${duration(wait)}` : `departed after ${duration(answer.delay)}`;
  return { kind: wait > 0 ? "queued" : "allowed", mark: wait > 0 ? "◷" : "✓", text: `${departs}, ${left}` };
}

/** Summarize a batch of answers for screen readers. */
export function summary(answers) {
  const allowed = answers.filter((answer) => answer.allowed).length;
  const denied = answers.length - allowed;
  if (answers.length === 1) return words(answers[0], 0).text;
  const retry = answers.find((answer) => !answer.allowed)?.retryAfter;
  const when = denied && retry !== null ? `, retry in ${duration(retry)}` : "";
  return `${answers.length} sent: ${allowed} allowed, ${denied} denied${when}`;
}

export class Answers {
  constructor(list, status) {
    this.list = list;
    this.status = status;
    this.count = 0;
    this.moving = []; // answers whose words still change
    this.denied = -Infinity; // when the latest denial came
  }

  add(answers) {
    const came = performance.now();
    for (const answer of answers) {
      this.count += 1;
      const text = html("span", { class: "text" });
      const mark = html("span", { class: "mark", "aria-hidden": "true" });
      const number = html("span", { class: "number" }, `#${this.count}`);
      const item = html("li", {}, mark, text, number);
      const entry = { answer, came, item, mark, text };
      this.draw(entry, came);
      if (answer.delay || !answer.allowed) this.moving.push(entry);
      if (!answer.allowed) this.denied = came;
      this.list.prepend(item);
    }
    while (this.list.childElementCount > MOST) this.list.lastElementChild.remove();
    this.moving = this.moving.slice(-MOST);
    tell(this.status, summary(answers));
  }

  clear() {
    this.list.replaceChildren();
    this.moving = [];
    this.count = 0;
    say(this.status, "");
  }

  tick(now) {
    this.moving = this.moving.filter((entry) => this.draw(entry, now));
  }

  /** Draw an entry; return whether it will change again. */
  draw({ answer, came, item, mark, text }, now) {
    const elapsed = (now - came) / 1000;
    const shown = words(answer, elapsed);
    if (item.className !== shown.kind) item.className = shown.kind;
    say(mark, shown.mark);
    say(text, shown.text);
    return elapsed < Math.max(answer.delay ?? 0, answer.retryAfter ?? 0);
  }
}
