// Step time against peak memory of the plan and of what was not chosen; the line joins those that nothing beats.

import { Chart, colour, tip } from "./chart.js";
import { byteInterval, bytes, duration, tick } from "./format.js";

class TradesChart extends Chart {
  async load() {
    return JSON.parse(document.getElementById(this.dataset.source).textContent).filter((one) => one.ns !== null && one.bytes !== null);
  }

  draw() {
    const data = this.data;
    const budget = Number(this.dataset.budget);
    const times = data.map((one) => one.ns);
    const sizes = data.map((one) => one.bytes);
    const margin = 0.08 * (Math.max(...times) - Math.min(...times)) || 0.05 * times[0];
    const least = Math.max(0, Math.min(...times) - margin);
    const most = Math.max(...times) + margin;
    const hasBudget = budget <= 3 * Math.max(...sizes);
    const top = 1.12 * Math.max(...sizes, hasBudget ? budget : 0);
    const front = data.filter((one) => one.front).sort((one, other) => one.ns - other.ns);
    const accent = colour("accent");
    this.instance.setOption({
      ...this.base(),
      tooltip: { ...this.base().tooltip, trigger: "item", formatter: (found) => describe(found.data.one) },
      grid: { left: 4, right: 16, top: 12, bottom: 22, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
      xAxis: {
        ...this.axis(), type: "value", min: least, max: most, name: "step time", nameLocation: "middle", nameGap: 24, splitNumber: 4,
        axisLabel: { ...this.axis().axisLabel, formatter: (ns) => tick(Number(ns.toPrecision(4)), most), showMinLabel: false, showMaxLabel: false },
      },
      yAxis: {
        ...this.axis(), type: "value", min: 0, max: top, interval: byteInterval(top),
        axisLabel: { ...this.axis().axisLabel, showMaxLabel: false, formatter: (value) => (value ? bytes(value, 2) : "0") },
      },
      series: [
        {
          type: "line", silent: true, step: "end", symbol: "none", lineStyle: { color: colour("quiet"), width: 1, type: "dashed" }, data: front.map((one) => [one.ns, one.bytes]),
          markLine: hasBudget ? { silent: true, symbol: "none", data: [{ yAxis: budget, lineStyle: { color: colour("bad"), type: "solid" }, label: { formatter: `budget ${bytes(budget)}`, position: "insideStartTop", color: colour("bad"), fontSize: 12 } }] } : undefined,
        },
        {
          type: "scatter",
          data: data.map((one) => ({
            value: [one.ns, one.bytes], one, symbol: one.kind === "chosen" ? "diamond" : "circle", symbolSize: one.kind === "chosen" ? 16 : 9,
            itemStyle: { color: one.fits ? accent : colour("surface"), borderColor: one.fits ? colour("surface") : colour("bad"), borderWidth: one.fits ? 1 : 2 },
            label: { show: one.kind === "chosen", formatter: "this plan", position: "right", color: colour("text"), fontWeight: "bold", textBorderColor: colour("surface"), textBorderWidth: 3 },
          })),
        },
      ],
    }, { notMerge: true });
  }
}

function describe(one) {
  return tip(one.words, [["step", duration(one.ns)], ["peak", bytes(one.bytes)], ["fits", one.fits ? "yes" : "no"]]);
}

customElements.define("trades-chart", TradesChart);
