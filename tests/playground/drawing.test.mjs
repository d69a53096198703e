import assert from "node:assert/strict";
import { test } from "node:test";

import { summary, words } from "../../src/ratekeeper/playground/static/answers.js";
import { typed } from "../../src/ratekeeper/playground/static/api.js";
import { choose, QUESTIONS, snippets } from "../../src/ratekeeper/playground/static/choose.js";
import { fromFragment, readSlices, toFragment } from "../../src/ratekeeper/playground/static/compare.js";
import { lanes, PAPER } from "../../src/ratekeeper/playground/static/lanes.js";
import { duration, fills, grid, histogram, round, slice, stack, ticks } from "../../src/ratekeeper/playground/static/layout.js";
import { bars } from "../../src/ratekeeper/playground/static/live.js";
import { pieces } from "../../src/ratekeeper/playground/static/lua.js";
import { labelOf } from "../../src/ratekeeper/playground/static/pictures.js";

const ALGORITHMS = JSON.parse(process.env.ALGORITHMS); // as the server lists them

test("cells fill one after another, the last one in part", () => {
  assert.deepEqual(fills(2.5, 4, 4), [1, 1, 0.5, 0]);
});

test("a cell may stand for several units", () => {
  assert.deepEqual(fills(150, 200, 2), [1, 0.5]);
});

test("usage beyond the limit fills every cell and no more", () => {
  assert.deepEqual(fills(9, 3, 3), [1, 1, 1]);
});

test("the grid has the largest squares that fit", () => {
  assert.deepEqual(grid(10, 200, 100), { columns: 5, size: 40 });
});

test("a slice of a quarter ends at three o'clock", () => {
  assert.equal(slice(10, 10, 5, 0.25), "M10 10V5A5 5 0 0 1 15 10Z");
});

test("no slice, no path", () => {
  assert.equal(slice(10, 10, 5, 0), "");
});

test("moments that are close together are stacked, and others stand on the ground", () => {
  assert.deepEqual(stack([0, 0.1, 0.2, 1, 1.05], 0.3), [0, 1, 2, 0, 1]);
});

test("a histogram counts units and leaves out what was denied", () => {
  assert.deepEqual(histogram([0, 1, null, 9], [1, 2, 5, 1], 10, 2), [3, 1]);
});

test("the next round number is 1, 2 or 5 with zeros", () => {
  assert.deepEqual([0.3, 1, 11, 60].map(round), [0.5, 1, 20, 100]);
});

test("an axis has round numbers", () => {
  assert.deepEqual(ticks(40, 8), [0, 5, 10, 15, 20, 25, 30, 35, 40]);
  assert.deepEqual(ticks(3, 4), [0, 1, 2, 3]);
});

test("times are as exact as they are short", () => {
  assert.deepEqual([0.256, 4.23, 37.4, 200].map(duration), ["0.26 s", "4.2 s", "37 s", "3 min"]);
});

test("the newest second is the bar at the right", () => {
  const [older, newest] = bars([{ admitted: 8, denied: 0 }, { admitted: 3, denied: 1 }], 60, 40);
  assert.deepEqual([older.x, older.height, newest.x, newest.height, newest.denied], [58, 40, 59, 20, 5]);
});

test("a denial counts down to its retry and then says so", () => {
  const denied = { allowed: false, remaining: 0, retryAfter: 3.2, delay: 0 };
  assert.equal(words(denied, 1).text, "denied, retry in 2.2 s");
  assert.equal(words(denied, 4).text, "denied, can retry now");
});

test("a cost that never fits has no countdown", () => {
  assert.equal(words({ allowed: false, retryAfter: null, delay: 0 }, 0).text, "denied: the cost exceeds the limit");
});

test("a queued request says when it departs", () => {
  assert.equal(words({ allowed: true, remaining: 4, retryAfter: null, delay: 2 }, 0.5).text, "queued, departs in 1.5 s, 4 left");
});

test("a burst is summed up for who hears it", () => {
  const yes = { allowed: true, remaining: 1, retryAfter: null, delay: 0 };
  const no = { allowed: false, remaining: 0, retryAfter: 2, delay: 0 };
  assert.equal(summary([yes, yes, no]), "3 sent: 2 allowed, 1 denied, retry in 2.0 s");
});

test("numbers are sent as numbers, and anything else as it was typed", () => {
  assert.deepEqual([" 10 ", "0.5", "ten", "", "Infinity"].map(typed), [10, 0.5, "ten", "", "Infinity"]);
});

test("a link says the parameters and gives them back", () => {
  const fragment = toFragment({ traffic: "poisson", seed: "7", rate: "" });
  assert.equal(fragment, "#compare?traffic=poisson&seed=7");
  assert.deepEqual(fromFragment(fragment), { traffic: "poisson", seed: "7" });
});

test("another fragment is no comparison", () => {
  assert.equal(fromFragment("#choose"), null);
});

test("slices are read with commas or spaces", () => {
  assert.deepEqual(readSlices("1, 2  x,3"), [1, 2, "x", 3]);
});

test("Lua is split into comments, strings, numbers and keywords", () => {
  assert.deepEqual(pieces("local a = 'b' -- c"), [
    { kind: "keyword", text: "local" },
    { kind: "plain", text: " a = " },
    { kind: "string", text: "'b'" },
    { kind: "plain", text: " " },
    { kind: "comment", text: "-- c" },
  ]);
});

test("the pieces of a script are the script", () => {
  const source = 'if x1 >= 2.5 then return "a\\"b" end\n-- done';
  assert.equal(pieces(source).map((piece) => piece.text).join(""), source);
});

test("who accepts delay gets the queue", () => {
  assert.equal(choose(ALGORITHMS, { delay: "yes", bursts: "no", exact: "no", memory: "yes" }).id, "leaky-bucket-shaping");
});

test("who wants bursts gets tokens", () => {
  assert.equal(choose(ALGORITHMS, { delay: "no", bursts: "yes", exact: "no", memory: "yes" }).id, "token-bucket");
});

test("who wants it exact and has memory gets the log", () => {
  assert.equal(choose(ALGORITHMS, { delay: "no", bursts: "no", exact: "yes", memory: "no" }).id, "sliding-window-log");
});

test("each algorithm is the answer to some choice, and has its snippets", () => {
  const answers = QUESTIONS.reduce(
    (all, { name, options }) => all.flatMap((answer) => options.map(([value]) => ({ ...answer, [name]: value }))),
    [{}],
  );
  const chosen = new Set(answers.map((answer) => choose(ALGORITHMS, answer)));
  assert.equal(chosen.size, 6);
  for (const algorithm of chosen) assert.deepEqual(Object.keys(snippets(algorithm, "http://here")), ["Python", "FastAPI", "curl"]);
});

test("the snippets make the rule as people write it", () => {
  const text = (id) => snippets(ALGORITHMS.find((algorithm) => algorithm.id === id), "http://here");
  assert.match(text("fixed-window").Python, /import Limiter, FixedWindow\n\nlimiter = Limiter\(FixedWindow\(limit=100, window=60\)\)\ndecision = /);
  assert.match(text("leaky-bucket-shaping").Python, /LeakyBucket\(capacity=20, leak_rate=10, mode="shaping"\)\)\nlimiter\.wait/);
  assert.match(text("token-bucket").curl, /"rule": "token-bucket 10\/s burst 20"/);
});

test("who chooses among algorithms that nobody asks for gets none", () => {
  assert.equal(choose([{ id: "knot", suits: null }], { delay: "no" }), undefined);
});

test("a queue has words of its own for its fields", () => {
  const field = { kind: "rate", label: "Leak" };
  assert.deepEqual([labelOf("queue", field), labelOf("level", field), labelOf("knot", field)], ["Depart", "Leak", "Leak"]);
});

test("a lane marks what passed and what was denied, and says when the peak is over the limit", () => {
  const rule = {
    title: "Fixed window", limit: 1, window_us: 1e6, departures_us: [0, 5e5, null], shaping: null,
    admitted: { requests: 2 }, denied: { requests: 1 }, peak: { units: 2, from_us: 0 },
  };
  const result = { traffic: { end_us: 2e6 }, requests: { at_us: [0, 5e5, 9e5], cost: [1, 1, 1] }, rules: [rule] };
  const text = lanes(result, 790, PAPER);
  assert.match(text, /d="M0 75v7M150 75v7" stroke="#2f5fd0"/);
  assert.match(text, /d="M270 83v7" stroke="#b3372f"/);
  assert.match(text, /peak 2 in any 1 s ▲/);
});
