// Step time and peak that jobs reported, over time, as shares of what the plan predicts; the line at 100 % is the plan.

import { Chart, colour, tip } from "./chart.js";
import { bytes, duration } from "./format.js";

class MeasuredChart extends Chart {
  async load() {
    return JSON.parse(document.getElementById(this.dataset.source).textContent);
  }

  draw() {
    const { step, peak, reports } = this.data;
    const shares = reports.flatMap((one) => [(100 * one.ns) / step, ...(one.bytes === null ? [] : [(100 * one.bytes) / peak])]);
    const least = Math.floor(Math.min(95, ...shares) / 5) * 5;
    const most = Math.ceil(Math.max(105, ...shares) / 5) * 5;
    const line = (name, mark, ink, value) => ({
      name, type: "line", symbol: mark, symbolSize: 8, lineStyle: { color: colour(ink), width: 1 }, itemStyle: { color: colour(ink) }, data: reports.map((one) => ({ value: [one.at, value(one)], one })),
    });
    const plan = { silent: true, symbol: "none", data: [{ yAxis: 100, lineStyle: { color: colour("quiet"), type: "dashed" }, label: { formatter: "predicted", position: "insideStartTop", color: colour("quiet"), fontSize: 12 } }] };
    const hasPeaks = reports.some((one) => one.bytes !== null);
    this.instance.setOption({
      ...this.base(),
      useUTC: true,
      tooltip: { ...this.base().tooltip, trigger: "item", formatter: (found) => describe(found.data.one) },
      legend: { bottom: 0, textStyle: { color: colour("text") }, data: hasPeaks ? ["step time", "peak"] : ["step time"] },
      grid: { left: 4, right: 16, top: 12, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
      xAxis: { ...this.axis(), type: "time", splitNumber: 4 },
      yAxis: { ...this.axis(), type: "value", min: least, max: most, axisLabel: { ...this.axis().axisLabel, formatter: "{value} %" } },
      series: [
        { ...line("step time", "circle", "accent", (one) => (100 * one.ns) / step), markLine: plan },
        ...(hasPeaks ? [line("peak", "diamond", "text", (one) => (one.bytes === null ? null : (100 * one.bytes) / peak))] : []),
      ],
    }, { notMerge: true });
  }
}

function describe(one) {
  const rows = [["step", duration(one.ns)]];
  if (one.bytes !== null) rows.push(["peak", bytes(one.bytes)]);
  return tip(one.words, rows);
}

customElements.define("measured-chart", MeasuredChart);
