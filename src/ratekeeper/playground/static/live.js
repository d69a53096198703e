// The strip at the top: decisions per second of the whole service, and the state of its store.

import { Refusal, get } from "./api.js";
import { pool, say, set, svg } from "./svg.js";

const WIDTH = 240;
const HEIGHT = 44;
const SECONDS = 60;

/** Return the bars of the latest seconds: { x, y, width, height, denied }, the newest at the right. */
export function bars(seconds, width, height) {
  const shown = seconds.slice(-SECONDS);
  const most = Math.max(4, ...shown.map(({ admitted, denied }) => admitted + denied));
  const step = width / SECONDS;
  return shown.map(({ admitted, denied }, index) => {
    const tall = ((admitted + denied) / most) * height;
    return {
      x: width - (shown.length - index) * step,
      width: step * 0.8,
      y: height - tall,
      height: tall,
      denied: (denied / most) * height,
    };
  });
}

export class Live {
  constructor(root) {
    this.root = root;
    this.chart = root.querySelector("svg");
    this.chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.chart.append(svg("g"));
    this.rates = root.querySelector(".rates");
    this.chip = root.querySelector(".chip");
    this.banner = document.getElementById("banner");
    this.isAway = false;
  }

  async refresh() {
    try {
      this.show(await get("/v1/live"));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.state("unreachable", "✕ not responding", error.message);
    }
  }

  show({ seconds, store }) {
    const nodes = pool(this.chart.lastElementChild, SECONDS, () =>
      svg("g", {}, svg("rect", { class: "admitted" }), svg("rect", { class: "denied" })),
    );
    bars(seconds, WIDTH, HEIGHT).forEach(({ x, y, width, height, denied }, index) => {
      const [yes, no] = nodes[index].children;
      set(yes, { x, y: y + denied, width, height: height - denied });
      set(no, { x: x + width / 4, y, width: width / 2, height: denied }); // thinner, for people who cannot tell the colors apart
    });
    const { admitted, denied } = seconds.at(-1);
    say(this.rates, `${admitted} admitted · ${denied} denied / s`);
    const kind = document.body.dataset.store ?? "store";
    if (store === "healthy") this.state("healthy", `✓ ${kind}`, "");
    else this.state("degraded", `▲ ${kind} unavailable`, `${kind} is unavailable. Until it is back, this process decides on its own with the same rules.`);
  }

  state(name, chip, message) {
    this.root.dataset.state = name;
    say(this.chip, chip);
    if (message === "" && !this.banner.hidden) this.onback?.();
    this.banner.hidden = message === "";
    say(this.banner, message);
  }
}
