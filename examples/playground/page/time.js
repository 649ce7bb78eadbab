const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3], ["µs", 1e-6]];

/** Returns the unit in which a time of this many seconds has at least one. */
const unitOf = (seconds) => units.find(([, length]) => seconds >= length * 0.999) ?? units.at(-1);

const round = (x) => String(Number(x.toPrecision(3)));

/** Returns a time in words, such as "1.5 s". */
export function duration(seconds) {
  const [name, length] = unitOf(seconds);
  return `${round(seconds / length)} ${name}`;
}

/** Returns the labels of an axis, all in the unit of its step. */
export function labels(values, step) {
  const [name, length] = unitOf(step);
  return values.map((v) => (v === 0 ? "0" : `${Number((v / length).toFixed(2))} ${name}`));
}
