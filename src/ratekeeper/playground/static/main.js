// Puts the page together and keeps it up to date.

import { Refusal, get, post } from "./api.js";
import { Card } from "./card.js";
import { Choose } from "./choose.js";
import { Compare } from "./compare.js";
import { Live } from "./live.js";
import { tell } from "./svg.js";

const POLL = 2000; // milliseconds until changes by other tabs are seen, at most
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
const tabs = new BroadcastChannel("ratekeeper");

const typeset = (text) => text.replaceAll("'", "’");

/** Ask for the list of algorithms and their descriptions. */
async function ask() {
  try {
    const algorithms = await get("/api/algorithms");
    return algorithms.map((each) => ({ ...each, idea: typeset(each.idea), reason: typeset(each.reason) }));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return []; // the strip at the top shows why
  }
}

const algorithms = await ask();
const cards = algorithms.map((definition) => new Card(definition, () => tabs.postMessage(definition.id)));
document.getElementById("cards").append(...cards.map((card) => card.root));

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = cards.find(({ root }) => root === entry.target);
    if (entry.isIntersecting && !card.isVisible) card.refresh();
    card.isVisible = entry.isIntersecting;
  }
});

async function refresh(chosen) {
  await Promise.all(chosen.map((card) => card.refresh()));
  const store = chosen[0]?.snapshot?.store;
  if (store) document.body.dataset.store = store;
}

tabs.onmessage = ({ data }) => refresh(data === "all" ? cards : cards.filter((card) => card.definition.id === data));

document.getElementById("reset").addEventListener("click", async () => {
  const status = document.getElementById("reset-status");
  try {
    await post("/api/rate-limit/reset");
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    tell(status, error.message);
    return;
  }
  for (const card of cards) card.answers.clear();
  await refresh(cards);
  tabs.postMessage("all");
  tell(status, "All counters have been reset.");
});

function frame(now) {
  if (!isStill.matches) for (const card of cards) if (card.isVisible) card.tick(now);
  requestAnimationFrame(frame);
}

setInterval(() => {
  if (isStill.matches) for (const card of cards) card.tick(performance.now());
}, 1000);

const live = new Live(document.getElementById("live"));
live.onback = () => refresh(cards);
setInterval(() => document.hidden || live.refresh(), 1000);
setInterval(() => document.hidden || refresh(cards.filter((card) => card.isVisible)), POLL);

new Choose(document.getElementById("choose"), algorithms);
const compare = new Compare(document.getElementById("compare"));

await refresh(cards.slice(0, 1)); // the first response starts the session that the others share
await refresh(cards.slice(1));
for (const card of cards) watcher.observe(card.root);
requestAnimationFrame(frame);
performance.mark("interactive");
live.refresh();
await compare.follow();
document.body.dataset.ready = "yes";
