// Numbers with units and sensible digits, as the server writes them.

function significant(value, digits) {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, digits - Math.max(whole, whole <= 0 ? whole : 1)));
}

export function bytes(value, digits = 3) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let scaled = value;
  while (Math.abs(scaled) >= 1024 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${significant(scaled, digits)} ${units[unit]}`;
}

export function duration(ns, digits = 4) {
  for (const [limit, unit] of [[1e3, "ns"], [1e6, "us"], [1e9, "ms"]]) {
    if (Math.abs(ns) < limit) return unit === "ns" ? `${Math.round(ns)} ns` : `${significant(ns / (limit / 1e3), digits)} ${unit}`;
  }
  return `${significant(ns / 1e9, digits)} s`;
}

// A label of a time axis that is `span` long: the same unit all along, no digits that say nothing.
export function tick(ns, span) {
  const [unit, word] = span < 5e3 ? [1, "ns"] : span < 5e6 ? [1e3, "us"] : span < 5e9 ? [1e6, "ms"] : [1e9, "s"];
  return `${+(ns / unit).toPrecision(12)} ${word}`;
}

// Ticks of a memory axis: about five, at round numbers of the unit.
export function byteInterval(most) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, most / 2)) / 10));
  const rough = most / unit / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
  return step * unit;
}
