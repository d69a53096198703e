// Choose: a few questions that lead to an algorithm, its reason and a snippet.

import { html, say } from "./svg.js";

export const QUESTIONS = [
  {
    name: "delay",
    text: "May a request be held back for a moment instead of being refused?",
    options: [["no", "No, answer at once"], ["yes", "Yes, smooth it out"]],
  },
  {
    name: "bursts",
    text: "Are short bursts welcome after a quiet time?",
    options: [["yes", "Yes, up to a capacity"], ["no", "No, keep to the limit"]],
  },
  {
    name: "exact",
    text: "Must the limit hold exactly, in any window whatever?",
    options: [["no", "Close is enough"], ["yes", "Yes, to the request"]],
  },
  {
    name: "memory",
    text: "Does memory for each key have to stay small?",
    options: [["yes", "Yes, there are many keys"], ["no", "No, a few kilobytes are fine"]],
  },
];

/** Return the algorithm for these answers, and why. */
export function choose({ delay, bursts, exact, memory }) {
  if (delay === "yes") {
    return ["leaky-bucket-shaping", "Requests wait in a queue and leave evenly, so what is behind it never sees a burst."];
  }
  if (bursts === "yes") {
    return ["token-bucket", "What was not used is saved up to the capacity, and the long-run rate holds exactly, in three numbers a key."];
  }
  if (exact === "yes" && memory === "no") {
    return ["sliding-window-log", "It remembers each request, so no window of any position ever has more than the limit."];
  }
  if (exact === "yes") {
    return ["leaky-bucket-policing", "Three numbers a key, exact arithmetic, and room comes back evenly instead of all at once. For the limit in any window to the request, memory has to grow: that is the log."];
  }
  if (memory === "yes") {
    return ["sliding-window-counter", "Two counts a key come close to the log, without the double burst of a fixed window. The usual choice."];
  }
  return ["fixed-window", "The simplest to explain: a count that starts again with each window of the clock. Two windows’ worth can meet at a boundary."];
}

const RULES = {
  "fixed-window": ["FixedWindow(limit=100, window=60)", "fixed-window 100/minute"],
  "sliding-window-log": ["SlidingWindowLog(limit=100, window=60)", "sliding-window-log 100/minute"],
  "sliding-window-counter": ["SlidingWindowCounter(limit=100, window=60)", "sliding-window-counter 100/minute"],
  "token-bucket": ["TokenBucket(capacity=20, refill_rate=10)", "token-bucket 10/s burst 20"],
  "leaky-bucket-policing": ["LeakyBucket(capacity=20, leak_rate=10)", "leaky-bucket 10/s burst 20"],
  "leaky-bucket-shaping": ['LeakyBucket(capacity=20, leak_rate=10, mode="shaping")', "leaky-bucket 10/s burst 20 shaping"],
};

/** Return the snippets for an algorithm, by title. */
export function snippets(algorithm, origin) {
  const [rule, text] = RULES[algorithm];
  const isShaping = algorithm.endsWith("shaping");
  const use = isShaping
    ? 'limiter.wait("user:42", timeout=5)  # sleeps until it is this request’s turn'
    : 'decision = limiter.hit("user:42")\nif not decision:\n    print(f"try again in {decision.retry_after:.3f} s")';
  return {
    Python: `from ratekeeper import Limiter, ${rule.split("(")[0]}\n\nlimiter = Limiter(${rule})\n${use}\n`,
    FastAPI:
      "from fastapi import Depends, FastAPI\nfrom ratekeeper.integrations.fastapi import RateLimit\n\napp = FastAPI()\n\n\n" +
      `@app.get("/search", dependencies=[Depends(RateLimit("${text}"))])\nasync def search(query: str): ...\n`,
    curl:
      `curl -i ${origin}/v1/hit \\\n  -H 'Content-Type: application/json' \\\n` +
      `  -d '{"key": "user:42", "rule": "${text}"}'\n`,
  };
}

export class Choose {
  constructor(root, titles) {
    this.form = root.querySelector("form");
    this.name = root.querySelector(".choice a");
    this.reason = root.querySelector(".reason");
    this.tabs = root.querySelector(".tabs");
    this.code = root.querySelector("pre");
    this.titles = titles;
    this.shown = "Python";
    this.form.append(...QUESTIONS.map(question));
    this.form.addEventListener("change", () => this.show());
    for (const kind of ["Python", "FastAPI", "curl"]) {
      this.tabs.append(html("button", { type: "button", onclick: () => ((this.shown = kind), this.show()) }, kind));
    }
    this.show();
  }

  show() {
    const [algorithm, reason] = choose(Object.fromEntries(new FormData(this.form)));
    say(this.name, this.titles[algorithm].toLowerCase());
    this.name.href = `#${algorithm}`;
    say(this.reason, reason);
    say(this.code, snippets(algorithm, location.origin)[this.shown]);
    for (const tab of this.tabs.children) tab.setAttribute("aria-pressed", String(tab.textContent === this.shown));
  }
}

function question({ name, text, options }) {
  const choices = options.map(([value, label], index) =>
    html("label", {}, html("input", { type: "radio", name, value, checked: index === 0 }), label),
  );
  return html("fieldset", {}, html("legend", {}, text), html("div", { class: "options" }, ...choices));
}
