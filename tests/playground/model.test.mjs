import assert from "node:assert/strict";
import { test } from "node:test";

import { departures, formula, project } from "../../src/ratekeeper/playground/static/model.js";

const AT = 1_700_000_003; // three seconds into a window of ten

const fixed = (count) => ({
  picture: "window", limit: 10, window: 10, now: AT, state: { window_start: AT - 3, window_end: AT + 7, count },
});
const counter = (count, before) => ({
  picture: "two-windows", limit: 10, window: 10, now: AT, state: { window_start: AT - 3, count, before },
});
const log = (entries, count = entries.reduce((sum, [, units]) => sum + units, 0)) => ({
  picture: "log", limit: 10, window: 10, now: AT, state: { count, entries, window: 10 },
});
const tokens = (number) => ({ picture: "tokens", limit: 10, rate: 2, now: AT, state: { tokens: number } });
const leaky = (level) => ({ picture: "level", limit: 10, rate: 2, now: AT, state: { level } });

test("a fixed window keeps its count until it ends", () => {
  assert.equal(project(fixed(4), AT + 6.999999).remaining, 6);
});

test("a fixed window starts from zero at its end", () => {
  const view = project(fixed(4), AT + 7);
  assert.deepEqual([view.remaining, view.used, view.start, view.left], [10, 0, AT + 7, 10]);
});

test("a fixed window finds the window of a much later moment", () => {
  assert.equal(project(fixed(4), AT + 28).start, AT + 27);
});

test("a log entry counts until it is one window old", () => {
  const snapshot = log([[AT - 9, 2], [AT - 1, 3]]);
  assert.equal(project(snapshot, AT + 0.999999).used, 5);
  assert.equal(project(snapshot, AT + 1).used, 3);
});

test("a log that came without its oldest entries still counts them", () => {
  assert.equal(project(log([[AT - 1, 1]], 7), AT).used, 7);
});

test("the counter weighs the window before by what is still in view", () => {
  const view = project(counter(2, 8), AT + 2);
  assert.deepEqual([view.weight, view.estimate, view.used, view.remaining], [0.5, 6, 6, 4]);
});

test("the counter's window becomes the window before", () => {
  const view = project(counter(8, 3), AT + 7);
  assert.deepEqual([view.count, view.before, view.used], [0, 8, 8]);
});

test("the counter has forgotten everything after two windows", () => {
  assert.equal(project(counter(8, 3), AT + 17).remaining, 10);
});

test("tokens refill by the rate and no further than the capacity", () => {
  assert.equal(project(tokens(3.25), AT + 1).tokens, 5.25);
  assert.equal(project(tokens(3.25), AT + 60).tokens, 10);
});

test("only a whole token can be spent", () => {
  assert.equal(project(tokens(3.999), AT).remaining, 3);
});

test("a token bucket that owes has nothing left", () => {
  assert.equal(project(tokens(-2), AT).remaining, 0);
});

test("the next token is as far away as its missing part", () => {
  assert.equal(project(tokens(3.5), AT).nextIn, 0.25);
});

test("a leaky bucket drains by the rate and no further than empty", () => {
  assert.equal(project(leaky(5), AT + 1).level, 3);
  assert.equal(project(leaky(5), AT + 9).level, 0);
});

test("who is in the queue departs one after another at the rate", () => {
  assert.deepEqual(departures(3.5, 2), [0.25, 0.75, 1.25]);
});

test("nobody departs from an empty queue", () => {
  assert.deepEqual(departures(0.4, 2), []);
});

test("a moment before the snapshot shows the snapshot", () => {
  assert.equal(project(tokens(3), AT - 5).tokens, 3);
});

const unknown = (remaining, resetAfter) => ({
  picture: "knot", limit: 10, now: AT, resetAfter, peek: { remaining }, state: { loops: 3 },
});

test("a state of an unknown shape stands as it was asked for until nothing of it is left", () => {
  const [before, after] = [AT + 1.9, AT + 2].map((now) => project(unknown(4, 2), now));
  assert.deepEqual([before.remaining, before.used, after.remaining, after.used], [4, 6, 10, 0]);
  assert.equal(formula(unknown(4, 2), before), "10 − 6 = 4");
});

test("each formula comes to the number that remains", () => {
  for (const snapshot of [fixed(4), log([[AT - 1, 3]]), counter(2, 8), tokens(3.25), leaky(5.5), { ...leaky(5.5), picture: "queue" }]) {
    const view = project(snapshot, AT + 1);
    assert.match(formula(snapshot, view), new RegExp(` = ${view.remaining}$`));
  }
});
