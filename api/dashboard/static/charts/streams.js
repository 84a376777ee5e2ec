// What each stream does, and what the compute stream waits for. Only what the window has room for is sent; zooming in
// asks for more.

import { Chart, colour, tip } from "./chart.js";
import { duration, tick } from "./format.js";

const ORDER = ["compute", "stalls", "gather", "copy_in", "reduce", "all_reduce", "offload", "cpu"];
const KINDS = {
  forward: "compute", backward: "compute", recompute: "recompute",
  all_gather_copy_in: "copy", all_gather_copy_out: "copy", reshard: "copy", accumulate: "copy", chunk_cat: "copy", divide: "copy",
  all_gather: "gather", reduce_scatter: "reduce", local_reduce: "reduce", post_reduce: "reduce", all_reduce: "all_reduce",
  host_to_device: "host", offload: "host", activation_out: "host", activation_in: "host",
  optimizer: "optimizer", launch: "launch",
};
const SETTLED_MS = 150;
const LEAST_NS = 2000;

class StreamsChart extends Chart {
  prepare() {
    const tools = document.createElement("div");
    tools.className = "buttons chart-tools";
    tools.setAttribute("role", "group");
    tools.setAttribute("aria-label", "Window of the step");
    for (const [words, action] of [
      ["Zoom in", () => this.zoom(0.5)], ["Zoom out", () => this.zoom(2)],
      ["Earlier", () => this.move(-0.5)], ["Later", () => this.move(0.5)], ["Whole step", () => this.show(0, this.data.shown_ns)],
    ]) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small";
      button.textContent = words;
      button.addEventListener("click", () => this.data && action());
      tools.append(button);
    }
    this.where = document.createElement("span");
    this.where.className = "quiet";
    this.where.setAttribute("role", "status");
    tools.append(this.where);
    this.prepend(tools);
    this.instance.on("datazoom", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refine(), SETTLED_MS);
    });
  }

  draw() {
    const data = this.data;
    this.tracks = ORDER.filter((track) => track in data.tracks);
    const [start, end] = this.window ?? [0, data.shown_ns];
    this.plot.style.height = `${90 + 34 * this.tracks.length}px`;
    this.instance.resize();
    this.bars = this.items();
    this.instance.setOption({
      ...this.base(),
      tooltip: { ...this.base().tooltip, trigger: "item", formatter: (found) => this.tip(found.data.work) },
      grid: { left: 4, right: 12, top: 8, bottom: 56, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
      xAxis: {
        ...this.axis(), type: "value", min: 0, max: data.shown_ns,
        axisLabel: { ...this.axis().axisLabel, formatter: (ns) => tick(ns, this.span()), alignMaxLabel: "right", showMinLabel: false, showMaxLabel: false },
        splitNumber: this.plot.clientWidth < 500 ? 3 : 6,
      },
      yAxis: {
        ...this.axis(), type: "category", inverse: true, data: this.tracks.map((track) => track.replaceAll("_", " ")),
        axisLabel: { ...this.axis().axisLabel, fontSize: 12, color: colour("text") }, splitLine: { show: false },
      },
      dataZoom: [
        { type: "inside", xAxisIndex: 0, filterMode: "none", startValue: start, endValue: end, minValueSpan: LEAST_NS, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
        {
          type: "slider", xAxisIndex: 0, filterMode: "none", startValue: start, endValue: end, minValueSpan: LEAST_NS, height: 20, bottom: 8,
          showDetail: false, brushSelect: false, borderColor: colour("line"), fillerColor: colour("accent-soft"), backgroundColor: colour("sunk"),
          handleStyle: { color: colour("surface"), borderColor: colour("accent") }, moveHandleSize: 0, showDataShadow: false,
        },
      ],
      series: [this.series()],
    }, { notMerge: true });
    this.say();
    this.mark();
  }

  // A series of its own for each window: one that is merged into the last keeps labels of bars that are gone.
  series() {
    this.number = (this.number ?? 0) + 1;
    return {
      id: `window-${this.number}`, type: "custom", clip: true, encode: { x: [1, 2], y: 0 }, data: this.bars,
      renderItem: (place, api) => this.bar(place, api),
    };
  }

  // The legend beside the picture names only what the step has.
  mark() {
    const kinds = new Set(Object.values(this.data.tracks).flat().map((work) => KINDS[work.kind] ?? "copy"));
    this.kinds = new Set([...(this.kinds ?? []), ...kinds]);
    for (const entry of this.parentElement.querySelectorAll("[data-kind]")) entry.hidden = !this.kinds.has(entry.dataset.kind);
  }

  items() {
    return this.tracks.flatMap((track, row) => this.data.tracks[track].map((work) => ({ value: [row, work.start_ns, work.end_ns], work: { ...work, track } })));
  }

  bar(place, api) {
    const [x, y] = api.coord([api.value(1), api.value(0)]);
    const right = api.coord([api.value(2), api.value(0)])[0];
    const { work } = this.bars[place.dataIndex] ?? {};
    const area = place.coordSys;
    const height = 0.68 * api.size([0, 1])[1];
    const shape = window.echarts.graphic.clipRectByRect(
      { x, y: y - height / 2, width: Math.max(right - x, 0.75), height },
      { x: area.x, y: area.y, width: area.width, height: area.height },
    );
    if (!shape || !work) return null;
    const fill = colour(`kind-${KINDS[work.kind] ?? "copy"}`);
    const hasRoom = shape.width > 58 && work.num === 1;
    return {
      type: "rect", shape, style: { fill, opacity: work.num > 1 ? 0.35 + 0.65 * Math.min(1, work.busy_ns / Math.max(1, work.end_ns - work.start_ns)) : 1 },
      textContent: hasRoom ? { type: "text", style: { text: label(work), fill: colour("surface"), fontSize: 11, width: shape.width - 8, overflow: "truncate" } } : undefined,
      textConfig: hasRoom ? { position: "inside" } : undefined,
    };
  }

  span() {
    const [start, end] = this.window ?? [0, this.data.shown_ns];
    return end - start;
  }

  zoom(factor) {
    const [start, end] = this.window ?? [0, this.data.shown_ns];
    const half = Math.max(LEAST_NS, factor * (end - start)) / 2;
    this.show((start + end) / 2 - half, (start + end) / 2 + half);
  }

  move(part) {
    const [start, end] = this.window ?? [0, this.data.shown_ns];
    this.show(start + part * (end - start), end + part * (end - start));
  }

  show(start, end) {
    const span = Math.min(end - start, this.data.shown_ns);
    const first = Math.min(Math.max(0, start), this.data.shown_ns - span);
    this.instance.dispatchAction({ type: "dataZoom", startValue: first, endValue: first + span });
  }

  // Asks for what the window that is shown now has room for.
  async refine() {
    const zoom = this.instance.getOption().dataZoom[0];
    const [start, end] = [Math.max(0, Math.floor(zoom.startValue)), Math.min(this.data.shown_ns, Math.ceil(zoom.endValue))];
    this.window = [start, end];
    this.say();
    const pieces = Math.max(100, Math.min(600, Math.round(this.plot.clientWidth / 3)));
    const asked = `${this.getAttribute("src")}?start_ns=${start}&end_ns=${Math.max(start + 1, end)}&pieces=${pieces}`;
    this.asked = asked;
    try {
      const data = await this.fetch(asked);
      if (this.asked !== asked) return;
      this.data = data;
      this.bars = this.items();
      this.instance.setOption({ series: [this.series()] }, { replaceMerge: ["series"] });
      this.mark();
      this.dataset.window = `${start}-${end}`;
    } catch {
      this.where.textContent = "The server does not answer; the detail is that of before.";
    }
  }

  say() {
    const [start, end] = this.window ?? [0, this.data.shown_ns];
    this.where.textContent = `${duration(start)} to ${duration(end)}`;
  }

  tip(work) {
    const rows = [["from", duration(work.start_ns)], ["lasts", duration(work.end_ns - work.start_ns)]];
    if (work.num > 1) rows.push(["operations together", String(work.num)], ["work", duration(work.busy_ns)]);
    if (work.track === "stalls") return tip(`waits for ${words(work.kind)}`, [["before", work.owner], ...rows]);
    return tip(`${label(work)}${work.num > 1 ? " and others" : ""}`, rows);
  }
}

function label(work) {
  return work.kind === "optimizer" ? work.owner : `${words(work.kind)} ${work.owner}`;
}

function words(kind) {
  return kind === "launch" ? "the CPU" : kind.replaceAll("_", " ");
}

customElements.define("streams-chart", StreamsChart);
