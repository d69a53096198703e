// The comparison as the text of an SVG: a lane for each rule, with what it admitted over time and its peak in any window.
// The page shows the same text that can be downloaded; only the colors differ.

import { histogram, round, short, ticks } from "./layout.js";

const US = 1e6;
const LANE = 74;
const TITLE = 22;
const AXIS = 30;
const NARROW = 620;

export const PAPER = { ink: "#1b2330", muted: "#5a6576", line: "#d5dbe3", accent: "#2f5fd0", soft: "#c9d6f7", no: "#b3372f", page: "#ffffff" };
export const SCREEN = {
  ...Object.fromEntries(["ink", "muted", "line", "accent", "soft", "no"].map((name) => [name, `var(--${name})`])),
  page: "none",
};

/** Return when the last request has departed, in microseconds. */
export function endOf(result) {
  const last = result.rules.map((rule) => Math.max(0, ...rule.departures_us.filter((at) => at !== null)) + 1);
  return Math.max(result.traffic.end_us, ...last);
}

/** Draw a comparison as the text of an SVG of this width. */
export function lanes(result, width, colors) {
  const isNarrow = width < NARROW;
  const left = 0;
  const right = width - (isNarrow ? 0 : 190);
  const end = endOf(result);
  const height = result.rules.length * (LANE + TITLE) + AXIS;
  const scale = (time) => short(left + (time / end) * (right - left));
  const step = round(end / 60); // microseconds for each step of the curve
  const bins = Math.ceil(end / step);
  const counts = result.rules.map((rule) => histogram(rule.departures_us, result.requests.cost, bins * step, bins));
  const most = Math.max(1, ...counts.flat());
  const topPeak = Math.max(...result.rules.map((rule) => rule.peak.units), result.rules[0].limit);
  const parts = result.rules.map((rule, index) =>
    lane({ rule, result, counts: counts[index], most, topPeak, top: index * (LANE + TITLE), left, right, width, end, step, scale, isNarrow, colors }),
  );
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" ` +
    `font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="${summary(result)}">` +
    `<rect width="${width}" height="${height}" fill="${colors.page}"/>` +
    parts.join("") +
    axis(end, right - left, height - AXIS + 4, scale, colors) +
    "</svg>"
  );
}

function lane({ rule, result, counts, most, topPeak, top, left, right, width, end, step, scale, isNarrow, colors }) {
  const base = top + TITLE + LANE - 22;
  const tall = LANE - 30;
  const area = counts
    .map((count, index) => `V${short(base - (count / most) * tall)}H${scale(Math.min(end, (index + 1) * step))}`)
    .join("");
  const marks = { yes: "", no: "" };
  rule.departures_us.forEach((departure, index) => {
    if (departure === null) marks.no += `M${scale(result.requests.at_us[index])} ${base + 9}v7`;
    else marks.yes += `M${scale(departure)} ${base + 1}v7`;
  });
  const isOver = rule.peak.units > rule.limit;
  const fastest = Math.max(...counts) / (step / US);
  const said = `peak ${rule.peak.units} in any ${short(rule.window_us / US)} s${isOver ? " ▲" : ""}`;
  const peakStart = right + 24;
  const room = width - peakStart - 4;
  const bar = isNarrow
    ? ""
    : `<rect x="${peakStart}" y="${base - 22}" width="${short((rule.peak.units / topPeak) * room)}" height="14" rx="3" fill="${isOver ? colors.no : colors.accent}"/>` +
      `<path d="M${short(peakStart + (rule.limit / topPeak) * room)} ${base - 28}v26" stroke="${colors.ink}" stroke-dasharray="3 2"/>`;
  const [saidX, saidY, anchor] = isNarrow ? [right, top + 14, "end"] : [peakStart, base - 34, "start"];
  const band = rule.peak.from_us === null ? "" : peakBand(rule, scale, base, tall, end, colors);
  return (
    `<text x="${left}" y="${top + 14}" fill="${colors.ink}" font-weight="600">${rule.title}</text>` +
    `<text x="${saidX}" y="${saidY}" text-anchor="${anchor}" fill="${isOver ? colors.no : colors.muted}" font-size="12">${said}</text>` +
    band +
    `<path d="M${left} ${base}${area}V${base}Z" fill="${colors.soft}" stroke="${colors.accent}" stroke-width="1"/>` +
    `<path d="M${left} ${base}H${right}" stroke="${colors.line}"/>` +
    `<path d="${marks.yes}" stroke="${colors.accent}" stroke-width="1.4"/>` +
    `<path d="${marks.no}" stroke="${colors.no}" stroke-width="1.2" stroke-dasharray="2 1.5"/>` +
    `<text x="${right}" y="${base - tall + 2}" text-anchor="end" fill="${colors.muted}" font-size="11">up to ${short(fastest)}/s</text>` +
    bar
  );
}

/** Mark the window in which the most units passed. */
function peakBand(rule, scale, base, tall, end, colors) {
  const from = scale(rule.peak.from_us);
  const to = scale(Math.min(end, rule.peak.from_us + rule.window_us));
  return (
    `<rect x="${from}" y="${base - tall}" width="${short(to - from)}" height="${tall}" fill="none" stroke="${colors.muted}" ` +
    'stroke-dasharray="2 3" rx="3"/>'
  );
}

function axis(end, width, y, scale, colors) {
  return ticks(end / US, width < 500 ? 4 : 8)
    .map((seconds, index) => {
      const anchor = index === 0 ? "start" : seconds * US > 0.97 * end ? "end" : "middle";
      return `<text x="${scale(seconds * US)}" y="${y + 16}" text-anchor="${anchor}" font-size="11" fill="${colors.muted}">${short(seconds)} s</text>`;
    })
    .join("");
}

/** Describe the comparison in one sentence. */
export function summary(result) {
  const peaks = result.rules.map((rule) => `${rule.title} admitted ${rule.admitted.requests}, peak ${rule.peak.units}`);
  return `${result.requests.at_us.length} requests. ${peaks.join("; ")}.`;
}
