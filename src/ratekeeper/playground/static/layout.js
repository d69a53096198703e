// The arithmetic of the drawings: plain numbers in, plain numbers out.

/** Return how full each of `cells` is, from 0 to 1, if together they show `amount` of `total` units. */
export function fills(amount, total, cells) {
  const perCell = total / cells;
  return Array.from({ length: cells }, (_, index) => clamp(amount / perCell - index, 0, 1));
}

/** Return the largest squares that fit `count` of them into a box: { columns, size }. */
export function grid(count, width, height) {
  let best = { columns: count, size: 0 };
  for (let columns = 1; columns <= count; columns += 1) {
    const size = Math.min(width / columns, height / Math.ceil(count / columns));
    if (size > best.size) best = { columns, size };
  }
  return best;
}

/** Return the path of a pie slice that begins at the top and runs clockwise; `share` is from 0 to 1. */
export function slice(x, y, radius, share) {
  if (share <= 0) return "";
  if (share >= 1) return `M${x} ${y - radius}a${radius} ${radius} 0 1 1 -.01 0Z`;
  const angle = share * 2 * Math.PI;
  const [endX, endY] = [x + radius * Math.sin(angle), y - radius * Math.cos(angle)].map(short);
  return `M${x} ${y}V${y - radius}A${radius} ${radius} 0 ${share > 0.5 ? 1 : 0} 1 ${endX} ${endY}Z`;
}

/** Return the level of each moment, in order: those that are less than `apart` after the first are stacked above it. */
export function stack(moments, apart) {
  let first = -Infinity;
  let height = 0;
  return moments.map((moment) => {
    height = moment - first < apart ? height + 1 : 0;
    if (height === 0) first = moment;
    return height;
  });
}

/** Count the units of each time slice: `bins` of them from 0 to `end`. A null is left out. */
export function histogram(times, costs, end, bins) {
  const counts = new Array(bins).fill(0);
  times.forEach((time, index) => {
    if (time !== null && time < end) counts[Math.floor((time / end) * bins)] += costs[index];
  });
  return counts;
}

/** Return the next round number: 1, 2 or 5 with zeros. */
export function round(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= number * 0.999);
}

/** Return round numbers for an axis from 0 to `end`, about `count` of them. */
export function ticks(end, count) {
  const step = round(end / count);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, index) => index * step);
}

/** Write a time for people: 0.25 s, 4.2 s, 37 s, 3 min. */
export function duration(seconds) {
  if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
  if (seconds >= 9.95) return `${Math.round(seconds)} s`;
  if (seconds >= 1 || seconds === 0) return `${seconds.toFixed(1)} s`;
  return `${seconds.toFixed(2)} s`;
}

/** Write a number with no more digits than it needs. */
export const short = (number) => String(Math.round(number * 100) / 100);

export const clamp = (number, least, most) => Math.min(most, Math.max(least, number));
