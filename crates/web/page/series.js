// From the points of the history to what a graph shows. No part of the page is used here.
//
// A point is { time, values }: milliseconds since 1970, and a value for each series of the API or null. A graph has a list of
// series [name, caption]. Its data are { times, columns }: a column for each series, with null where nothing is known.

// Time over which the bytes written to devices are compared with those that clients wrote: those of a txg are written seconds
// after the clients' bytes.
export const RATIO_MS = 60_000;
// Bytes of clients below which the ratio says nothing: labels and metadata are written for other reasons, too.
export const RATIO_BYTES = 1 << 20;

// Data of a graph. With `per`, each value is divided by that series, both summed over RATIO_MS.
export function dataOf(graph, names, points, step) {
  const places = graph.series.map(([name]) => names.indexOf(name));
  const times = points.map((point) => point.time);
  if (!graph.per) {
    return { times, columns: places.map((place) => points.map((point) => point.values[place] ?? null)) };
  }
  const divisor = names.indexOf(graph.per);
  const columns = places.map(() => []);
  let first = 0;
  points.forEach((point, n) => {
    // Nothing is summed over a gap.
    if (n && isGap(points[n - 1].time, point.time, step)) first = n;
    while (points[first].time <= point.time - Math.max(RATIO_MS, 1000 * step)) first++;
    const window = points.slice(first, n + 1);
    const sum = (place) => window.reduce((total, one) => total + (one.values[place] ?? NaN) * step, 0);
    const payload = sum(divisor);
    const ratios = places.map((place) => (payload >= RATIO_BYTES ? sum(place) / payload : NaN));
    // Without one of its parts, the sum would be too small.
    const isKnown = !ratios.some(Number.isNaN);
    ratios.forEach((ratio, k) => columns[k].push(isKnown ? ratio : null));
  });
  return { times, columns };
}

// Whether points are missing between two times.
export function isGap(before, time, step) {
  return time - before > 2500 * step;
}

// Lines of a graph: for each column a list of runs of [x, value], with at most one point for each whole x. Of points that fall
// together, a stacked graph has the mean, which keeps its sums, and another one the maximum, so that no peak is lost. A line ends
// where nothing is known, which is not zero. The last of the columns is not stacked if it is a limit.
export function linesOf({ times, columns }, x, step, isStacked, hasLimit) {
  const lines = columns.map(() => []);
  const open = columns.map(() => undefined);
  let n = 0;
  while (n < times.length) {
    const place = Math.floor(x(times[n]));
    let end = n + 1;
    while (end < times.length && Math.floor(x(times[end])) === place && !isGap(times[end - 1], times[end], step)) end++;
    const starts = n > 0 && isGap(times[n - 1], times[n], step);
    let below = 0;
    columns.forEach((column, k) => {
      const known = column.slice(n, end).filter((value) => value !== null);
      if (starts || known.length === 0) open[k] = undefined;
      if (known.length === 0) return;
      const isPart = isStacked && !(hasLimit && k === columns.length - 1);
      const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
      const value = isPart ? below + mean : Math.max(...known);
      if (isPart) below = value;
      if (!open[k]) lines[k].push((open[k] = []));
      open[k].push([x(times[end - 1]), value]);
    });
    n = end;
  }
  return lines;
}

// What a column was over a range of time: the mean, and of latencies, which have no mean, the greatest; null if nothing is known.
export function summaryOf({ times, columns }, n, { from, to }, unit) {
  const known = columns[n].filter((value, at) => value !== null && times[at] >= from && times[at] <= to);
  if (known.length === 0) return { what: "", value: null };
  if (unit === "s") return { what: "at most ", value: Math.max(...known) };
  return { what: "mean ", value: known.reduce((sum, value) => sum + value, 0) / known.length };
}

// Resolution and step, in seconds, for a range of time in milliseconds: the finest that the history keeps for so long, with at most
// MAX_POINTS points.
const KEPT = [["second", 1, 3600], ["ten_seconds", 10, 86_400], ["minute", 60, 30 * 86_400]];
const MAX_POINTS = 720;

export function resolutionFor(from, to, now) {
  const isKept = ([, , length]) => from >= now - 1000 * length;
  const [name, seconds] = KEPT.find(isKept) ?? KEPT[KEPT.length - 1];
  const points = (to - from) / 1000 / seconds;
  return { resolution: name, step: seconds * Math.max(1, Math.ceil(points / MAX_POINTS)) };
}

// The number of the point that is nearest to a time; -1 without points.
export function nearest(times, time) {
  let best = -1;
  times.forEach((one, n) => {
    if (best < 0 || Math.abs(one - time) < Math.abs(times[best] - time)) best = n;
  });
  return best;
}

// Points with newer ones in place of those from `from` on.
export function continued(points, newer, from) {
  const kept = points.filter((point) => point.time < from);
  const last = newer.length ? newer[newer.length - 1].time : -1;
  // A second of the live stream may be newer than the answer.
  return [...kept, ...newer, ...points.filter((point) => point.time >= from && point.time > last)];
}
