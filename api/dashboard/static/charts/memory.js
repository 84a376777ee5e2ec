// Allocated memory over the step, stacked by category, against the budget; the peak is named.

import { Chart, colour, tip } from "./chart.js";
import { byteInterval, bytes, duration, tick } from "./format.js";

const ORDER = [
  "parameters", "optimizer", "gradients", "buffers", "unsharded_parameters", "gather_buffers",
  "unsharded_gradients", "reduce_buffers", "activations", "transients",
];
const FAR = 3; // a budget so many times the peak lies above the picture

class MemoryChart extends Chart {
  draw() {
    const data = this.data;
    const most = Math.max(Number(this.getAttribute("most-bytes")) || 0, data.reserved_bytes);
    const hasBudget = data.budget_bytes <= FAR * most;
    const top = 1.12 * (hasBudget ? Math.max(data.budget_bytes, most) : most);
    this.layers = layers(data);
    this.instance.setOption({
      ...this.base(),
      tooltip: {
        ...this.base().tooltip,
        trigger: "axis",
        axisPointer: { type: "line", lineStyle: { color: colour("text") } },
        formatter: (found) => this.tip(found[0].dataIndex),
      },
      grid: { left: 4, right: 12, top: 26, bottom: 4, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
      xAxis: {
        ...this.axis(), type: "value", min: 0, max: data.shown_ns, splitLine: { show: false },
        axisLabel: { ...this.axis().axisLabel, formatter: (ns) => tick(ns, data.shown_ns), showMaxLabel: false },
        splitNumber: this.plot.clientWidth < 500 ? 3 : 6,
      },
      yAxis: {
        ...this.axis(), type: "value", min: 0, max: top, interval: byteInterval(top),
        axisLabel: { ...this.axis().axisLabel, showMaxLabel: false, formatter: (value) => (value ? bytes(value, 2) : "0") },
      },
      series: [this.areas(), this.total(hasBudget)],
      graphic: hasBudget ? [] : [{
        type: "text", right: 12, top: 4, silent: true,
        style: { text: `budget ${bytes(data.budget_bytes)}, above the picture`, fill: colour("bad"), fontSize: 12 },
      }],
    }, { notMerge: true });
  }

  areas() {
    const { times_ns: times, shown_ns: end } = this.data;
    return {
      type: "custom", silent: true, tooltip: { show: false }, clip: true,
      data: this.layers.map((_, index) => [0, index]),
      renderItem: (_, api) => {
        const layer = this.layers[api.value(1)];
        const shape = [];
        const edge = (values, place) => {
          const until = place + 1 < times.length ? times[place + 1] : end;
          return [api.coord([times[place], values[place]]), api.coord([until, values[place]])];
        };
        for (let place = 0; place < times.length; place += 1) shape.push(...edge(layer.upper, place));
        for (let place = times.length - 1; place >= 0; place -= 1) shape.push(...edge(layer.lower, place).reverse());
        return { type: "polygon", shape: { points: shape }, style: { fill: colour(`memory-${layer.name}`), stroke: colour("surface"), lineWidth: 0.5 } };
      },
    };
  }

  total(hasBudget) {
    const data = this.data;
    const peak = data.times_ns[data.peak_index];
    const isRight = peak > 0.55 * data.shown_ns;
    const names = data.micro_batches.slice(1).map((one) => one.start_ns);
    const isNearBudget = hasBudget && data.reserved_bytes > 0.88 * data.budget_bytes;
    const poolsAt = !isNearBudget ? "insideEndTop" : peak > 0.35 * data.shown_ns ? "insideStartBottom" : "insideEndBottom";
    const across = [
      { yAxis: data.reserved_bytes, lineStyle: { color: colour("quiet"), type: "dotted" }, label: { formatter: `pools apart ${bytes(data.reserved_bytes)}`, position: poolsAt, color: colour("quiet") } },
    ];
    if (hasBudget) {
      across.push({ yAxis: data.budget_bytes, lineStyle: { color: colour("bad"), type: "solid", width: 1.5 }, label: { formatter: `budget ${bytes(data.budget_bytes)}`, position: "insideStartTop", color: colour("bad"), fontWeight: "bold" } });
    }
    for (const [number, start] of names.entries()) {
      const words = number + 2 === data.micro_batches.length ? "last micro-batch" : "next micro-batches";
      across.push({ xAxis: start, lineStyle: { color: colour("line-strong"), type: "dashed" }, label: { show: !this.isNarrow(), formatter: words, position: "end", color: colour("quiet") } });
    }
    const points = data.times_ns.map((time, index) => [time, data.total_bytes[index]]);
    return {
      type: "line", step: "end", symbol: "none", data: points, z: 5,
      lineStyle: { color: colour("text"), width: 1 },
      markLine: { silent: true, symbol: "none", animation: false, label: { fontSize: 12, textBorderColor: colour("surface"), textBorderWidth: 3 }, data: across },
      markPoint: {
        silent: true, symbol: "circle", symbolSize: 9, animation: false,
        itemStyle: { color: colour("text"), borderColor: colour("surface"), borderWidth: 2 },
        label: {
          show: true, position: isRight ? "left" : "right", distance: 8, offset: [0, 7], fontSize: 12, fontWeight: "bold", color: colour("text"),
          textBorderColor: colour("surface"), textBorderWidth: 3, width: Math.max(120, 0.5 * this.plot.clientWidth), overflow: "break",
          align: isRight ? "right" : "left",
          formatter: `peak ${bytes(data.total_bytes[data.peak_index])}${this.isNarrow() ? "" : `: ${data.moments[data.peak_index]}`}`,
        },
        data: [{ coord: [peak, data.total_bytes[data.peak_index]] }],
      },
    };
  }

  // Where labels would lie on each other; the sentence below the picture names the moment of the peak.
  isNarrow() {
    return this.plot.clientWidth < 560;
  }

  tip(index) {
    const data = this.data;
    const rows = [...this.layers].reverse()
      .map((layer) => [layer.name.replaceAll("_", " "), data.by_category_bytes[layer.name][index], colour(`memory-${layer.name}`)])
      .filter((row) => row[1] > 0)
      .map(([name, value, swatch]) => [name, bytes(value), swatch]);
    return tip(`${duration(data.times_ns[index])}, ${data.moments[index]}`, [["in all", bytes(data.total_bytes[index])], ...rows]);
  }
}

function layers(data) {
  let lower = data.times_ns.map(() => 0);
  const found = [];
  for (const name of ORDER.filter((one) => one in data.by_category_bytes)) {
    const upper = lower.map((value, index) => value + data.by_category_bytes[name][index]);
    found.push({ name, lower, upper });
    lower = upper;
  }
  return found;
}

customElements.define("memory-chart", MemoryChart);
