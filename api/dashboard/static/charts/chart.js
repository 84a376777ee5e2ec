// What every picture shares: a custom element that loads its data, draws it with ECharts in the colours of the page,
// and draws again when these or its size change. The tables beside it have the same numbers.

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A tooltip as DOM, since the policy of the page allows no style in markup.
export function tip(title, rows) {
  const box = document.createElement("div");
  const head = document.createElement("p");
  head.textContent = title;
  box.append(head);
  const list = document.createElement("dl");
  for (const [name, value, swatch] of rows) {
    const term = document.createElement("dt");
    if (swatch) {
      const mark = document.createElement("i");
      mark.style.background = swatch;
      term.append(mark);
    }
    term.append(name);
    const detail = document.createElement("dd");
    detail.textContent = value;
    list.append(term, detail);
  }
  box.append(list);
  return box;
}

export class Chart extends HTMLElement {
  connectedCallback() {
    if (this.plot) return;
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.append(this.plot);
    this.instance = window.echarts.init(this.plot, null, { renderer: "svg" });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
    this.scheme = window.matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.data && this.draw();
    this.scheme.addEventListener("change", this.redraw);
    this.prepare();
    this.start();
  }

  disconnectedCallback() {
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
    this.instance.dispose();
    this.plot.remove();
    this.plot = null;
  }

  prepare() {}

  // Labels and ticks depend on the width, not on the height.
  resize() {
    this.instance.resize();
    if (this.data && this.width !== this.plot.clientWidth) this.draw();
    this.width = this.plot.clientWidth;
  }

  async start() {
    try {
      this.data = await this.load();
      this.draw();
      this.dataset.ready = "";
    } catch (error) {
      this.plot.hidden = true;
      const words = document.createElement("p");
      words.className = "quiet";
      words.setAttribute("role", "status");
      words.textContent = `This picture could not be drawn: ${error.message}. Load the page again.`;
      this.append(words);
    }
  }

  async load() {
    return this.fetch(this.getAttribute("src"));
  }

  async fetch(address) {
    const answer = await fetch(address, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.json();
  }

  // Options that all pictures begin with.
  base() {
    const text = colour("text");
    return {
      animation: false,
      aria: { enabled: true, label: { description: this.dataset.label ?? "" } },
      textStyle: { color: text, fontFamily: getComputedStyle(document.body).fontFamily },
      tooltip: {
        confine: true,
        className: "chart-tip",
        backgroundColor: colour("surface"),
        borderColor: colour("line-strong"),
        textStyle: { color: text, fontSize: 12 },
      },
    };
  }

  axis() {
    const quiet = colour("quiet");
    return {
      axisLine: { lineStyle: { color: colour("line-strong") } },
      axisTick: { show: false },
      axisLabel: { color: quiet, fontSize: 11, hideOverlap: true },
      nameTextStyle: { color: quiet },
      splitLine: { lineStyle: { color: colour("line") } },
    };
  }
}
