// One chart: a canvas drawn by uPlot, a legend with numbers, a description and a table that say the same.

import { clock, colour, element, mean, number, percent } from "./format.js";

const HEIGHT = 168;
const ROWS = 20;
const BRIDGED_S = 12;  // a line goes on over a shorter gap: few rounds are no rest
const together = uPlot.sync("charts");

export class Chart {
  /** spec: see figures.js. */
  constructor(spec) {
    this.spec = spec;
    this.stacked = spec.kind !== "lines";
    this.frames = [];
    this.span = 60;
    this.canvas = element("div", { class: "canvas", role: "img" });
    this.values = spec.series.map(() => element("b"));
    this.body = element("tbody");
    this.table = element("details", {}, element("summary", {}, "As a table"),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${spec.title} as a table` },
        element("table", {}, this.head(), this.body)));
    this.table.addEventListener("toggle", () => this.fillTable());
    this.figure = element("figure", { class: "card chart" },
      element("figcaption", {}, element("h3", {}, spec.title), element("span", { class: "unit" }, spec.unit)),
      this.canvas, this.legend(), this.table);
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    document.addEventListener("themechange", () => this.plot?.redraw(false));
  }

  legend() {
    return element("ul", { class: "legend", "aria-hidden": "true" }, ...this.spec.series.map((series, i) => {
      const swatch = element("i", { class: series.dash ? "swatch dashed" : "swatch" });
      swatch.style.setProperty("--of", `var(--${series.colour})`);
      return element("li", {}, swatch, series.name, this.values[i]);
    }));
  }

  head() {
    const names = ["Time", ...this.spec.series.map((series) => series.name)];
    return element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name))));
  }

  /** Draws these frames, the last `span` seconds of them. */
  show(frames, span) {
    this.frames = frames;
    this.span = span;
    if (!this.canvas.clientWidth) return;
    this.plot ??= new uPlot(this.options(), this.columns(), this.canvas);
    this.plot.setData(this.columns());
    this.describe();
    if (this.table.open) this.fillTable();
  }

  /** Times and one column a series; in stacks each on top of those before it. */
  columns() {
    const columns = [this.frames.map((frame) => frame.at)];
    const base = this.frames.map(() => 0);
    for (const series of this.spec.series) {
      const values = this.frames.map(series.read);
      columns.push(this.stacked
        ? values.map((value, i) => (value === null ? null : (base[i] += value)))
        : values.map((value) => value ?? null));
    }
    return columns;
  }

  options() {
    const { series, fill, kind, whole } = this.spec;
    const share = kind === "share";
    return {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 22, 0, 0],
      cursor: { sync: { key: together.key }, y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: () => this.range() },
        y: { range: (_, low, high) => (share ? [0, 1] : [0, Math.max(whole ? 4 : 0, (high || 1) * 1.12)]) },
      },
      axes: [
        { stroke: () => colour("muted"), grid: { show: false }, ticks: { stroke: () => colour("line"), size: 4 },
          size: 28, space: 90, font: "11px system-ui", values: (_, times) => times.map(clock) },
        { stroke: () => colour("muted"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false },
          size: 46, font: "11px system-ui",
          incrs: whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined,
          values: (_, ticks) => ticks.map((tick) => (share ? percent(tick) : compact(tick))) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.name,
        stroke: () => colour(one.colour),
        width: this.stacked ? 1 : 2,
        dash: one.dash,
        fill: this.stacked || fill ? () => translucent(colour(one.colour), this.stacked ? 0.55 : 0.16) : undefined,
        gaps: (plot, _, __, ___, gaps) => gaps.filter(([from, to]) => to - from > plot.bbox.width * BRIDGED_S / this.span),
        points: this.stacked ? { show: false } : { size: 5, filter: alone },
      }))],
      bands: this.stacked ? series.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [],
      hooks: { setCursor: [() => this.readValues()] },
    };
  }

  range() {
    const end = this.frames.at(-1)?.at ?? Date.now() / 1000;
    return [end - this.span, end];
  }

  resize() {
    if (!this.canvas.clientWidth) return;
    if (this.plot) this.plot.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
    else if (this.frames.length) this.show(this.frames, this.span);
  }

  /** The legend's numbers: under the cursor, or the newest. */
  readValues() {
    const at = this.plot?.cursor.idx ?? this.frames.length - 1;
    const frame = this.frames[at];
    this.spec.series.forEach((series, i) => {
      this.values[i].textContent = frame ? this.say(series.read(frame)) : "";
    });
  }

  say(value) {
    return this.spec.kind === "share" ? percent(value) : number(value, this.spec.whole ? 0 : this.spec.digits);
  }

  describe() {
    this.readValues();
    const seen = this.frames.filter((frame) => frame.at >= this.range()[0]);
    const parts = this.spec.series.map((series) => {
      const values = seen.map(series.read);
      return `${series.name} now ${this.say(values.at(-1))}, mean ${this.say(mean(values))}`;
    });
    this.canvas.setAttribute("aria-label", `${this.spec.title}, ${this.spec.unit}: ${parts.join("; ")}`);
  }

  fillTable() {
    if (!this.table.open) return;
    this.body.replaceChildren(...this.frames.slice(-ROWS).reverse().map((frame) => element("tr", {},
      element("th", { scope: "row" }, clock(frame.at)),
      ...this.spec.series.map((series) => element("td", {}, this.say(series.read(frame)))))));
  }
}

/** Points between gaps, which no line would show. */
function alone(plot, series) {
  const values = plot.data[series];
  return values.map((_, i) => i).filter((i) =>
    values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null);
}

function compact(value) {
  return value >= 10000 ? `${number(value / 1000, 0)}k` : String(Number(value.toPrecision(4)));
}

function translucent(hex, alpha) {
  return `${hex}${Math.round(255 * alpha).toString(16).padStart(2, "0")}`;
}
