// One picture for each kind of state. A factory makes the nodes once and returns a function that draws a view of model.js.

import { clamp, duration, fills, grid, short, slice, stack } from "./layout.js";
import { pool, say, set, svg } from "./svg.js";

export const WIDTH = 320;
export const HEIGHT = 136;
const MOST_CELLS = 50; // with more units, a cell shows several

const label = (x, y, anchor = "start", kind = "") => svg("text", { x, y, "text-anchor": anchor, class: `label ${kind}` });

function fixedWindow(root) {
  const cells = svg("g");
  const ring = { cx: 262, cy: 62, r: 40, pathLength: 1, fill: "none" };
  const arc = svg("circle", { ...ring, class: "ring", transform: "rotate(-90 262 62)" });
  const left = label(262, 67, "middle", "big");
  const caption = label(262, 128, "middle");
  root.append(cells, svg("circle", { ...ring, class: "track" }), arc, left, caption);
  return (view) => {
    drawSlots(cells, view, { x: 4, y: 10, width: 196, height: 116 });
    set(arc, { "stroke-dasharray": `${short4(clamp(view.left / view.window, 0, 1))} 1` });
    say(left, duration(view.left));
    say(caption, "until the next window");
  };
}

function drawSlots(group, view, box) {
  const count = Math.min(view.limit, MOST_CELLS);
  const { columns, size } = grid(count, box.width, box.height);
  const side = Math.min(size, 40);
  const rows = Math.ceil(count / columns);
  const top = box.y + (box.height - rows * side) / 2;
  const nodes = pool(group, count, () => svg("g", {}, svg("rect", { class: "slot" }), svg("rect", { class: "fill" })));
  fills(view.used, view.limit, count).forEach((fill, index) => {
    const [outline, inside] = nodes[index].children;
    const square = {
      x: short(box.x + (index % columns) * side + side * 0.07),
      y: short(top + Math.floor(index / columns) * side + side * 0.07),
      width: short(side * 0.86),
      height: short(side * 0.86),
      rx: short(side * 0.2),
    };
    set(outline, square);
    set(inside, { ...square, opacity: short(fill) });
  });
}

function slidingWindowLog(root) {
  const [from, to, base] = [14, 306, 96];
  const dots = svg("g");
  const start = label(from, 122);
  const end = label(to, 122, "end");
  const hint = label(WIDTH / 2, 122, "middle");
  root.append(
    svg("rect", { x: from, y: 14, width: to - from, height: base - 14, class: "view", rx: 6 }),
    svg("line", { x1: from, x2: to, y1: base, y2: base, class: "axis" }),
    svg("line", { x1: to, x2: to, y1: 8, y2: base + 5, class: "now" }),
    svg("line", { x1: from, x2: from, y1: 8, y2: base + 5, class: "edge" }),
    dots,
    start,
    hint,
    end,
  );
  return (view) => {
    const units = view.entries.flatMap((entry) => Array(Math.min(entry.units, MOST_CELLS)).fill(entry)).slice(-400);
    const places = stack(units.map((entry) => entry.at), (view.window / (to - from)) * 11);
    const spacing = Math.min(12, (base - 20) / Math.max(1, ...places.map((place) => place + 1)));
    const nodes = pool(dots, units.length, () => svg("circle", { class: "stamp" }));
    units.forEach((entry, index) => {
      set(nodes[index], {
        cx: short(to - (entry.age / view.window) * (to - from)),
        cy: short(base - 3 - (places[index] + 0.5) * spacing),
        r: short(Math.min(5, spacing * 0.45)),
        opacity: short(clamp((view.window - entry.age) / (view.window * 0.08), 0.25, 1)),
      });
    });
    say(start, `${duration(view.window)} ago`);
    say(hint, view.entries.length ? `next expires in ${duration(view.window - view.entries[0].age)}` : "");
    say(end, "now");
  };
}

function slidingWindowCounter(root) {
  const [left, middle, right, top, base] = [10, 160, 310, 14, 96];
  const before = svg("rect", { class: "fill past" });
  const counted = svg("rect", { class: "fill" });
  const current = svg("rect", { class: "fill" });
  const frame = svg("rect", { y: top - 6, height: base - top + 12, rx: 6, class: "frame" });
  const texts = [label((left + middle) / 2, 120, "middle"), label((middle + right) / 2, 120, "middle")];
  root.append(
    svg("line", { x1: left, x2: right, y1: base, y2: base, class: "axis" }),
    svg("line", { x1: middle, x2: middle, y1: top - 8, y2: base + 6, class: "edge" }),
    svg("line", { x1: left, x2: right, y1: top + 8, y2: top + 8, class: "cap" }),
    before,
    counted,
    current,
    frame,
    ...texts,
  );
  return (view) => {
    const width = middle - left;
    const tall = (count) => clamp(count / view.limit, 0, 1.1) * (base - top - 8);
    const shift = (1 - view.weight) * width; // how far the sliding window has moved out of the previous window
    const bar = (x, wide, count) => ({ x: short(x), width: short(wide), y: short(base - tall(count)), height: short(tall(count)) });
    set(before, bar(left + 4, Math.max(0, shift - 4), view.before));
    set(counted, bar(left + Math.max(4, shift), Math.max(0, width - Math.max(4, shift) - 2), view.before));
    set(current, bar(middle + 2, Math.max(0, shift - 2), view.count));
    set(frame, { x: short(left + shift), width });
    say(texts[0], `before: ${view.before}`);
    say(texts[1], `this window: ${view.count}`);
  };
}

function tokenBucket(root) {
  const coins = svg("g");
  const rate = label(262, 34, "middle", "big");
  const next = label(262, 74, "middle", "big");
  const caption = label(262, 90, "middle");
  root.append(
    svg("path", { d: "M8 12 L20 122 Q21 130 29 130 H179 Q187 130 188 122 L200 12", class: "vessel" }),
    coins,
    rate,
    Object.assign(label(262, 50, "middle"), { textContent: "refilled" }),
    next,
    caption,
  );
  return (view) => {
    const count = Math.min(view.limit, MOST_CELLS);
    const { columns, size } = grid(count, 158, 104);
    const side = Math.min(size, 34);
    const nodes = pool(coins, count, () => svg("g", {}, svg("circle", { class: "slot" }), svg("path", { class: "fill" })));
    fills(view.tokens, view.limit, count).forEach((fill, index) => {
      const [outline, inside] = nodes[index].children;
      const x = short(104 - (columns * side) / 2 + ((index % columns) + 0.5) * side);
      const y = short(126 - (Math.floor(index / columns) + 0.5) * side);
      const radius = short(side * 0.41);
      set(outline, { cx: x, cy: y, r: radius });
      set(inside, { d: slice(Number(x), Number(y), Number(radius), fill) });
    });
    say(rate, `+${short(view.rate)} / s`);
    const isFull = view.tokens >= view.limit;
    say(next, isFull ? "full" : duration(view.nextIn));
    say(caption, isFull ? "" : "to the next token");
  };
}

function policing(root) {
  const water = svg("rect", { x: 12, width: 184, class: "water" });
  const drip = svg("circle", { cx: 104, r: 3.5, class: "fill" });
  const overflow = svg("path", { d: "M198 20 q12 -14 20 6 l1 20", class: "overflow" });
  const rate = label(262, 78, "middle", "big");
  const level = label(262, 34, "middle", "big");
  const clip = svg("clipPath", { id: "policing-vessel" }, svg("path", { d: "M12 10 L22 104 Q23 110 29 110 H179 Q185 110 186 104 L196 10Z" }));
  root.append(
    clip,
    svg("g", { "clip-path": "url(#policing-vessel)" }, water),
    overflow,
    svg("path", { d: "M12 10 L22 104 Q23 110 29 110 H98 M110 110 H179 Q185 110 186 104 L196 10", class: "vessel" }),
    svg("line", { x1: 4, x2: 204, y1: 22, y2: 22, class: "cap" }),
    drip,
    level,
    Object.assign(label(262, 50, "middle"), { textContent: "in the bucket" }),
    rate,
    Object.assign(label(262, 94, "middle"), { textContent: "leaking out" }),
  );
  return (view) => {
    const height = clamp(view.level / view.limit, 0, 1.1) * 88;
    set(water, { y: short(110 - height), height: short(height) });
    const phase = view.level > 0 ? 1 - (view.level % 1 || 1) : 0; // one drop for each unit
    set(drip, { cy: short(112 + phase * 20), opacity: view.level > 0 ? short(1 - phase * 0.7) : 0 });
    set(overflow, { opacity: short(clamp(1.5 - view.deniedFor, 0, 1)) }); // visible for a moment after a denial
    say(level, view.level.toFixed(view.limit < 1000 ? 2 : 0));
    say(rate, `−${short(view.rate)} / s`);
  };
}

function shaping(root) {
  const [gate, end] = [46, 312];
  const boxes = svg("g");
  const last = label(end, 122, "end");
  root.append(
    svg("rect", { x: gate, y: 38, width: end - gate, height: 50, rx: 8, class: "view" }),
    svg("line", { x1: gate, x2: gate, y1: 22, y2: 104, class: "now" }),
    Object.assign(label(gate, 122, "middle"), { textContent: "departs" }),
    svg("path", { d: "M34 63 H10 M18 55 L10 63 L18 71", class: "arrow" }),
    boxes,
    last,
  );
  return (view) => {
    const shown = view.departures.slice(0, MOST_CELLS);
    const perSecond = (end - gate - 4) / Math.max(view.limit / view.rate, 1e-9);
    const width = clamp(perSecond / view.rate, 3, 60);
    const nodes = pool(boxes, shown.length, () =>
      svg("g", {}, svg("rect", { y: 46, height: 34, rx: 5, class: "fill" }), svg("text", { y: 67, class: "inside", "text-anchor": "middle" })),
    );
    shown.forEach((seconds, index) => {
      const [box, text] = nodes[index].children;
      const x = gate + seconds * perSecond + 1;
      set(box, { x: short(x), width: short(Math.max(2, width - 3)) });
      set(text, { x: short(x + width / 2 - 1) });
      const number = seconds.toFixed(seconds < 9.95 ? 1 : 0);
      say(text, width >= Math.max(24, 7 * number.length + 4) ? number : ""); // a digit is seven units wide
    });
    const waiting = view.departures.length;
    say(last, waiting ? `last of ${waiting} departs in ${duration(view.departures[waiting - 1])}` : "the queue is empty");
  };
}

const short4 = (number) => number.toFixed(4);

/** A picture for any state: how much is in use, and when the key is full again. */
function bar(root) {
  const box = { x: 12, y: 40, height: 36, rx: 8 };
  const room = WIDTH - 24;
  const used = svg("rect", { ...box, class: "fill" });
  const count = label(12, 28, "start", "big");
  const next = label(WIDTH - 12, 104, "end");
  root.append(svg("rect", { ...box, width: room, class: "view" }), used, count, next);
  return (view) => {
    set(used, { width: short(clamp(view.used / view.limit, 0, 1) * room) });
    say(count, `${view.used} in use`);
    say(next, view.resetIn > 0 ? `full again in ${duration(view.resetIn)}` : "full");
  };
}

const PICTURES = {
  window: fixedWindow,
  log: slidingWindowLog,
  "two-windows": slidingWindowCounter,
  tokens: tokenBucket,
  level: policing,
  queue: shaping,
};

const LABELS = { queue: { count: "Queue", rate: "Depart" } };

/** Return the factory of a picture. */
export const pictureOf = (picture) => PICTURES[picture] ?? bar;

/** Return the label of a field beside a picture. */
export const labelOf = (picture, { kind, label: usual }) => LABELS[picture]?.[kind] ?? usual;
