// Compare: the same traffic through all algorithms, in simulated time.

import { Refusal, post, typed } from "./api.js";
import { PAPER, SCREEN, lanes, summary } from "./lanes.js";
import { clamp, short } from "./layout.js";
import { html, pool, say, set, svg, tell } from "./svg.js";

const NAMES = ["traffic", "limit", "window", "rate", "duration", "seed", "cost"];
const SLICES = 40;
const MOST_IN_SLICE = 20;
const WIDTH = 800;
const HEIGHT = 120;

/** Write parameters as the fragment of a link, and read them back; the same text gives the same run. */
export function toFragment(parameters) {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#compare?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}`;
}

export function fromFragment(fragment) {
  if (!fragment.startsWith("#compare?")) return null;
  return Object.fromEntries(new URLSearchParams(fragment.slice("#compare?".length)));
}

/** Read the requests of each slice, such as "0, 3 12". */
export function readSlices(text) {
  return text.split(/[\s,]+/).filter(Boolean).map(typed);
}

export class Compare {
  constructor(root) {
    this.root = root;
    this.form = root.querySelector("form");
    this.output = root.querySelector(".lanes");
    this.table = root.querySelector("tbody");
    this.status = root.querySelector("[role=status]");
    this.link = root.querySelector(".link");
    this.slices = this.form.elements.slices;
    this.board = root.querySelector(".board");
    this.downloads = root.querySelectorAll(".svg, .json");
    this.result = null;
    this.asked = 0; // the number of runs so far; `shown` is the one on the page
    this.shown = 0;
    this.prepare();
  }

  prepare() {
    const { form, board, slices } = this;
    form.addEventListener("submit", (event) => (event.preventDefault(), this.run()));
    form.elements.traffic.addEventListener("change", () => (this.showBoard(), this.run()));
    slices.addEventListener("input", () => this.drawBoard());
    board.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    board.append(svg("rect", { width: WIDTH, height: HEIGHT, class: "view", rx: 8 }), svg("g"));
    const drag = (event) => event.buttons && this.drag(event);
    board.addEventListener("pointerdown", (event) => (board.setPointerCapture(event.pointerId), drag(event)));
    board.addEventListener("pointermove", drag);
    board.addEventListener("pointerup", () => this.run());
    this.root.querySelector(".copy").addEventListener("click", () => this.copy());
    this.root.querySelector(".svg").addEventListener("click", () => this.save("svg", lanes(this.result, 1100, PAPER), "image/svg+xml"));
    this.root.querySelector(".json").addEventListener("click", () => this.save("json", JSON.stringify(this.result), "application/json"));
    new ResizeObserver(() => this.result && this.draw()).observe(this.output);
    window.addEventListener("hashchange", () => this.follow());
    this.showBoard();
  }

  /** Take the parameters of the address, if it has any, and run. */
  follow() {
    const given = fromFragment(location.hash);
    if (given) {
      for (const name of [...NAMES, "slices"]) this.form.elements[name].value = given[name] ?? this.form.elements[name].defaultValue ?? "";
      this.form.elements.traffic.value ||= "boundary"; // an unknown traffic leaves it empty
      this.showBoard();
      this.root.scrollIntoView();
    }
    if (given === null && this.result) return Promise.resolve();
    return this.run();
  }

  parameters() {
    const { elements } = this.form;
    const given = Object.fromEntries(NAMES.map((name) => [name, elements[name].value.trim()]));
    if (given.traffic === "drawn") given.slices = this.slices.value.trim();
    return given;
  }

  async run() {
    const asked = ++this.asked;
    const parameters = this.parameters();
    const body = Object.fromEntries(Object.entries(parameters).filter(([, text]) => text !== ""));
    for (const name of NAMES.slice(1)) if (name in body) body[name] = typed(body[name]);
    if (parameters.traffic === "drawn") body.slices = readSlices(this.slices.value);
    let result = null;
    let refusal = null;
    try {
      result = await post("/api/compare", body);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      refusal = error;
    }
    if (this.shown > asked) return; // a later request was faster
    this.shown = asked;
    this.complain(refusal);
    if (refusal) return;
    this.result = result;
    for (const button of this.downloads) button.disabled = false;
    this.draw();
    this.fill();
    this.link.href = toFragment(parameters);
    tell(this.status, summary(this.result));
  }

  complain(refusal) {
    let isShown = false;
    for (const error of this.form.querySelectorAll(".field .error")) {
      const input = error.parentElement.querySelector("input, select, textarea");
      const isAtFault = refusal?.field?.split("[")[0] === input.name;
      if (isAtFault) tell(this.status, refusal.message); // an error without a field is an alert
      isShown ||= isAtFault;
      input.setAttribute("aria-invalid", String(isAtFault));
      say(error, isAtFault ? refusal.message : "");
    }
    say(this.root.querySelector(".trouble"), refusal && !isShown ? refusal.message : "");
  }

  draw() {
    const width = Math.max(300, Math.floor(this.output.clientWidth));
    this.output.innerHTML = lanes(this.result, width, SCREEN); // it contains only numbers and our own names
  }

  fill() {
    const log = (rule) => (rule.deviation.over + rule.deviation.under ? `+${rule.deviation.over} −${rule.deviation.under}` : "exact");
    const rows = this.result.rules.map((rule) => {
      const delay = rule.shaping ? `${short(rule.shaping.longest_delay_us / 1e6)} s` : "–";
      const peak = `${rule.peak.units}${rule.peak.units > rule.limit ? " ▲" : ""}`;
      const cells = [rule.admitted.requests, rule.denied.requests, peak, log(rule), delay];
      const head = html("th", { role: "rowheader", scope: "row" }, rule.title);
      return html("tr", { role: "row" }, head, ...cells.map((cell) => html("td", { role: "cell" }, String(cell))));
    });
    this.table.replaceChildren(...rows);
  }

  showBoard() {
    const isDrawn = this.form.elements.traffic.value === "drawn";
    this.root.querySelector(".drawing").hidden = !isDrawn;
    for (const name of ["rate", "seed"]) this.form.elements[name].disabled = isDrawn;
    this.form.elements.seed.disabled = this.form.elements.traffic.value !== "poisson";
    if (isDrawn) this.drawBoard();
  }

  counts() {
    const given = readSlices(this.slices.value);
    return Array.from({ length: SLICES }, (_, index) => (Number.isInteger(given[index]) ? given[index] : 0));
  }

  drawBoard() {
    const step = WIDTH / SLICES;
    const nodes = pool(this.board.lastElementChild, SLICES, () => svg("rect", { class: "fill", rx: 2 }));
    this.counts().forEach((count, index) => {
      const height = (clamp(count, 0, MOST_IN_SLICE) / MOST_IN_SLICE) * HEIGHT;
      set(nodes[index], { x: index * step + 1, width: step - 2, y: HEIGHT - height, height });
    });
  }

  drag(event) {
    const box = this.board.getBoundingClientRect();
    const slice = clamp(Math.floor(((event.clientX - box.left) / box.width) * SLICES), 0, SLICES - 1);
    const counts = this.counts();
    counts[slice] = clamp(Math.round((1 - (event.clientY - box.top) / box.height) * MOST_IN_SLICE), 0, MOST_IN_SLICE);
    this.slices.value = counts.join(" ");
    this.drawBoard();
  }

  async copy() {
    history.replaceState(null, "", this.link.href);
    try {
      await navigator.clipboard.writeText(this.link.href);
      tell(this.status, "Link copied. It reproduces this run exactly.");
    } catch {
      tell(this.status, "The link is in the address bar. It reproduces this run exactly.");
    }
  }

  save(kind, text, type) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    html("a", { href: address, download: `ratekeeper-compare.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}
