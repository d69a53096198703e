// Choose: a few questions that lead to an algorithm, its reason and a snippet.

import { html, say } from "./svg.js";

export const QUESTIONS = [
  {
    name: "delay",
    text: "May a request be delayed instead of denied?",
    options: [["no", "No, decide immediately"], ["yes", "Yes, smooth out the traffic"]],
  },
  {
    name: "bursts",
    text: "Are short bursts allowed after a quiet period?",
    options: [["yes", "Yes, up to a capacity"], ["no", "No, only the steady rate"]],
  },
  {
    name: "exact",
    text: "Must the limit be exact in every window?",
    options: [["no", "Close is enough"], ["yes", "Yes, to the request"]],
  },
  {
    name: "memory",
    text: "Must memory use per key stay small?",
    options: [["yes", "Yes, there are many keys"], ["no", "No, a few kilobytes are fine"]],
  },
];

/** Return the algorithm for these answers. */
export function choose(algorithms, answers) {
  return algorithms.find(({ suits }) => suits && Object.entries(suits).every(([name, answer]) => answers[name] === answer));
}

/** Return the snippets for an algorithm, by title. */
export function snippets({ example, picture }, origin) {
  const use =
    picture === "queue"
      ? 'limiter.wait("user:42", timeout=5)  # sleeps until it is this request’s turn'
      : 'decision = limiter.hit("user:42")\nif not decision:\n    print(f"try again in {decision.retry_after:.3f} s")';
  return {
    Python: `from ratekeeper import Limiter, ${example.class}\n\nlimiter = Limiter(${example.python})\n${use}\n`,
    FastAPI:
      "from fastapi import Depends, FastAPI\nfrom ratekeeper.integrations.fastapi import RateLimit\n\napp = FastAPI()\n\n\n" +
      `@app.get("/search", dependencies=[Depends(RateLimit("${example.text}"))])\nasync def search(query: str): ...\n`,
    curl:
      `curl -i ${origin}/v1/hit \\\n  -H 'Content-Type: application/json' \\\n` +
      `  -d '{"key": "user:42", "rule": "${example.text}"}'\n`,
  };
}

export class Choose {
  constructor(root, algorithms) {
    this.form = root.querySelector("form");
    this.name = root.querySelector(".choice a");
    this.reason = root.querySelector(".reason");
    this.tabs = root.querySelector(".tabs");
    this.code = root.querySelector("pre");
    this.algorithms = algorithms;
    this.shown = "Python";
    this.form.append(...QUESTIONS.map(question));
    this.form.addEventListener("change", () => this.show());
    for (const kind of ["Python", "FastAPI", "curl"]) {
      this.tabs.append(html("button", { type: "button", onclick: () => ((this.shown = kind), this.show()) }, kind));
    }
    this.show();
  }

  show() {
    const algorithm = choose(this.algorithms, Object.fromEntries(new FormData(this.form)));
    if (algorithm === undefined) return; // the server did not send the list
    say(this.name, algorithm.title.toLowerCase());
    this.name.href = `#${algorithm.id}`;
    say(this.reason, algorithm.reason);
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
