import uPlot from "./uplot/uPlot.esm.js";
import { labels } from "./time.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const minute = 60, hour = 60 * minute, day = 24 * hour;
const steps = [1, 2, 5, 10, 30, minute, 2 * minute, 5 * minute, 10 * minute, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour, day];

/** Returns where the axis of time has lines: at edges of windows, or for a log at round times. */
function splits(result, end, width) {
  const most = Math.max(2, Math.floor(width / 64));
  if (!result.pasted) {
    let every = 1;
    while ((result.edges.length - 1) / every > most) every *= 2;
    return result.edges.filter((_, i) => i % every === 0);
  }
  let step = steps.find((s) => end / s <= most) ?? day;
  while (end / step > most) step *= 2;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** Returns whether the axis of time has lines on the chart: a log and buckets have no windows. */
const lined = (result, outcome) => result.pasted || outcome.algorithm.endsWith("_window");

/** Adds up the bars, so that each kind stands on the one before. The tallest is drawn first. */
function stack({ within, beyond, denied, important }) {
  const admitted = within.map((n, i) => n + beyond[i]);
  return [admitted.map((n, i) => n + denied[i]), admitted, within, important];
}

/** Returns the height of the tallest bar of all algorithms: they share one scale. */
export function tallest(result) {
  const heights = result.outcomes.flatMap((o) => (o.error ? [] : stack(o.bars)[0]));
  return Math.max(1, ...heights, result.pasted ? 0 : result.average);
}

const bars = uPlot.paths.bars({ size: [0.86, Infinity], align: 1 });

function series(name) {
  return { fill: colour(name), stroke: colour(name), width: 0, paths: bars, points: { show: false } };
}

/** Draws the limit as an even rate, which many clients together do not have, nor "unlimited". */
function average(result) {
  return (u) => {
    if (result.pasted || result.average === 0) return;
    const y = Math.round(u.valToPos(result.average, "y", true));
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = colour("average");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  };
}

/** Draws what became of the requests into element, in place of what was there. */
export function draw(element, result, outcome, top) {
  const n = outcome.bars.within.length;
  const end = n * result.bin;
  const width = element.clientWidth;
  const times = Array.from({ length: n }, (_, i) => i * result.bin);
  const axis = { stroke: colour("soft"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  element.replaceChildren();
  return new uPlot({
    width,
    height: element.clientHeight,
    padding: [6, 24, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false, range: [0, end] }, y: { range: [0, top * 1.04] } },
    axes: [
      {
        ...axis, size: 24, gap: 4, grid: { show: lined(result, outcome), stroke: colour("field"), width: 1 },
        splits: () => splits(result, end, width),
        values: (u, at) => labels(at, at[1] - at[0]),
      },
      {
        ...axis, size: 42, gap: 4, grid: { stroke: colour("rule"), width: 1 },
        label: "requests", labelSize: 16, labelGap: 0, labelFont: axis.font,
        space: 36, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000], values: (u, at) => at.map(String),
      },
    ],
    series: [{}, series("denied"), series("beyond"), series("within"), series("important")],
    hooks: { draw: [average(result)] },
  }, [times, ...stack(outcome.bars)], element);
}
