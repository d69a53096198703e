// The state of a key at a later time, if no other request comes: the server's state, updated by the rule's own formula.
// Times are in seconds. A snapshot is a response of `/api/rate-limit/{algorithm}/state`.

const MICROSECONDS = 1e6;
const NEARLY = 1e-9; // the rounding error of doubles; a unit is never this small

const us = (seconds) => Math.round(seconds * MICROSECONDS);

/** Return a view of a snapshot's key at `now`. Every view has `limit`, `used` and `remaining`. */
export function project(snapshot, now) {
  const time = Math.max(now, snapshot.now); // nothing is known about earlier times
  return (MODELS[snapshot.picture] ?? bar)(snapshot, time);
}

function fixedWindow({ state, limit, window }, now) {
  let { window_start: start, count } = state;
  if (now >= start + window) {
    start = Math.floor(us(now) / us(window)) * window;
    count = 0;
  }
  return { limit, used: count, remaining: Math.max(0, limit - count), window, start, left: start + window - now };
}

function slidingWindowLog({ state, limit, window }, now) {
  const entries = state.entries
    .map(([at, units]) => ({ at, units, age: Math.max(0, now - at) }))
    .filter((entry) => us(now) < us(entry.at) + us(window));
  const shown = entries.reduce((sum, entry) => sum + entry.units, 0);
  const all = state.entries.reduce((sum, [, units]) => sum + units, 0);
  const used = shown + Math.max(0, state.count - all); // a long log is sent without its oldest entries
  return { limit, used, remaining: Math.max(0, limit - used), window, entries };
}

function slidingWindowCounter({ state, limit, window }, now) {
  let { window_start: start, count, before } = state;
  const passed = Math.floor((us(now) - us(start)) / us(window));
  if (passed > 0) {
    before = passed === 1 ? count : 0;
    count = 0;
    start += passed * window;
  }
  const elapsed = Math.min(Math.max(0, us(now) - us(start)), us(window));
  const weight = (us(window) - elapsed) / us(window);
  const used = count + Math.floor((before * (us(window) - elapsed)) / us(window));
  const estimate = count + before * weight;
  return { limit, used, remaining: Math.max(0, limit - used), window, start, count, before, weight, estimate };
}

function tokenBucket({ state, limit, rate, now: since }, now) {
  const tokens = Math.min(limit, state.tokens + rate * (now - since));
  const remaining = Math.max(0, Math.floor(tokens + NEARLY));
  const nextIn = tokens >= limit ? 0 : (Math.floor(tokens + NEARLY) + 1 - tokens) / rate;
  return { limit, used: limit - tokens, remaining, tokens, rate, nextIn };
}

function leakyBucket({ state, limit, rate, now: since }, now) {
  const level = Math.max(0, state.level - rate * (now - since));
  const remaining = Math.max(0, Math.floor(limit - level + NEARLY));
  return { limit, used: level, remaining, level, rate, departures: departures(level, rate) };
}

/** Return in how many seconds each unit leaves the queue, the next one first. */
export function departures(level, rate) {
  const waiting = Math.floor(level + NEARLY);
  return Array.from({ length: waiting }, (_, index) => Math.max(0, level - waiting + index) / rate);
}

/** The view of a state that this page has no formula for: how much was left, and when the key is full again. */
function bar({ now: since, limit, peek, resetAfter }, now) {
  const resetIn = Math.max(0, since + resetAfter - now);
  const remaining = resetIn > 0 ? peek.remaining : limit;
  return { limit, used: limit - remaining, remaining, resetIn };
}

const MODELS = {
  window: fixedWindow,
  log: slidingWindowLog,
  "two-windows": slidingWindowCounter,
  tokens: tokenBucket,
  level: leakyBucket,
  queue: leakyBucket,
};

/** Show in one line how the rule's formula leads to a view's number. */
export function formula(snapshot, view) {
  return (FORMULAS[snapshot.picture] ?? FORMULAS.window)(view);
}

const FORMULAS = {
  window: (view) => `${view.limit} − ${view.used} = ${view.limit - view.used}`,
  log: (view) => `${view.limit} − ${view.used} in view = ${view.limit - view.used}`,
  "two-windows": (view) =>
    `${view.limit} − ⌊${view.count} + ${view.before} × ${view.weight.toFixed(2)}⌋ = ${view.limit - view.used}`,
  tokens: (view) => `⌊${view.tokens.toFixed(2)} tokens⌋ = ${Math.floor(view.tokens + NEARLY)}`,
  level: (view) => `⌊${view.limit} − ${view.level.toFixed(2)}⌋ = ${Math.floor(view.limit - view.level + NEARLY)}`,
  queue: (view) => `⌊${view.limit} − ${view.level.toFixed(2)} queued⌋ = ${Math.floor(view.limit - view.level + NEARLY)}`,
};
