// What the six cards say and ask for; the names of the fields are those of the API.

const limit = (name, label) => ({ name, label, unit: "", value: "10" });
const windowSeconds = { name: "windowSeconds", label: "Window", unit: "s", value: "10" };
const rate = (name, label) => ({ name, label, unit: "per s", value: "1" });

export const CARDS = [
  {
    id: "fixed-window",
    algorithm: "fixed-window",
    title: "Fixed window",
    idea: "Count the requests of each window of the clock. A new window starts from zero.",
    fields: [limit("maxRequests", "Limit"), windowSeconds],
  },
  {
    id: "sliding-window-log",
    algorithm: "sliding-window-log",
    title: "Sliding window log",
    idea: "Remember when each request came. It counts until it is one window old.",
    fields: [limit("maxRequests", "Limit"), windowSeconds],
  },
  {
    id: "sliding-window-counter",
    algorithm: "sliding-window-counter",
    title: "Sliding window counter",
    idea: "Two counts: this window’s, and the last one’s by how much of it is still in view.",
    fields: [limit("maxRequests", "Limit"), windowSeconds],
  },
  {
    id: "token-bucket",
    algorithm: "token-bucket",
    title: "Token bucket",
    idea: "Tokens refill at a steady rate up to a capacity. A request takes what it costs.",
    fields: [limit("maxTokens", "Capacity"), rate("refillRate", "Refill")],
  },
  {
    id: "leaky-bucket-policing",
    algorithm: "leaky-bucket",
    mode: "policing",
    title: "Leaky bucket, policing",
    idea: "Requests fill a bucket that drains at a steady rate. What would overflow is denied.",
    fields: [limit("capacity", "Capacity"), rate("leakRate", "Leak")],
  },
  {
    id: "leaky-bucket-shaping",
    algorithm: "leaky-bucket",
    mode: "shaping",
    title: "Leaky bucket, shaping",
    idea: "The bucket is a queue: requests wait in it and leave one after another, evenly.",
    fields: [limit("capacity", "Queue"), rate("leakRate", "Depart")],
  },
];

/** Say in one line how a view of model.js comes to its number, by the rule's formula. */
export const FORMULAS = {
  "fixed-window": (view) => `${view.limit} − ${view.used} = ${view.limit - view.used}`,
  "sliding-window-log": (view) => `${view.limit} − ${view.used} in view = ${view.limit - view.used}`,
  "sliding-window-counter": (view) =>
    `${view.limit} − ⌊${view.count} + ${view.before} × ${view.weight.toFixed(2)}⌋ = ${view.limit - view.used}`,
  "token-bucket": (view) => `⌊${view.tokens.toFixed(2)} tokens⌋ = ${Math.floor(view.tokens + 1e-9)}`,
  "leaky-bucket-policing": (view) => `⌊${view.limit} − ${view.level.toFixed(2)}⌋ = ${Math.floor(view.limit - view.level + 1e-9)}`,
  "leaky-bucket-shaping": (view) =>
    `⌊${view.limit} − ${view.level.toFixed(2)} queued⌋ = ${Math.floor(view.limit - view.level + 1e-9)}`,
};
