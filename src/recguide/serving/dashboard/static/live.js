// The view of live figures: tiles, charts, and a summary for those who listen.

import { Chart } from "./chart.js";
import { CHARTS, TILES } from "./figures.js";
import { element, mean } from "./format.js";

const KEPT = 600;
const SMOOTHED = 6;

export class Live {
  constructor() {
    this.frames = [];
    this.span = 60;
    this.paused = false;
    this.tiles = TILES.map((spec) => new Tile(spec));
    this.charts = CHARTS.map((spec) => new Chart(spec));
    document.getElementById("tiles").append(...this.tiles.map((tile) => tile.box));
    document.getElementById("charts").append(...this.charts.map((chart) => chart.figure));
    for (const input of document.querySelectorAll('input[name="span"]')) {
      input.addEventListener("change", () => {
        this.span = Number(input.value);
        this.draw();
      });
    }
    const pause = document.getElementById("pause");
    pause.addEventListener("click", () => {
      this.paused = !this.paused;
      pause.setAttribute("aria-pressed", this.paused);
      pause.textContent = this.paused ? "Go on" : "Pause";
      this.draw();
    });
    document.getElementById("say").addEventListener("click", () => {
      document.getElementById("summary").textContent = this.tiles.map((tile) => tile.said).join(", ");
    });
    window.addEventListener("resize", () => this.draw());
  }

  history(frames) {
    this.frames = frames;
    this.draw();
  }

  frame(frame) {
    this.frames = [...this.frames, frame].slice(-KEPT);
    this.draw();
  }

  draw() {
    if (this.paused || !this.frames.length) return;
    const recent = this.frames.slice(-SMOOTHED);
    for (const tile of this.tiles) tile.show(recent);
    if (document.getElementById("live").hidden || document.hidden) return;
    for (const chart of this.charts) chart.show(this.frames, this.span);
  }
}

/** A number: the mean of the last seconds, or how it is now. */
class Tile {
  constructor(spec) {
    this.spec = spec;
    this.value = element("dd", { class: "value" }, "–");
    this.small = element("dd", { class: "small" }, spec.unit);
    this.box = element("div", { class: "card tile" }, element("dt", {}, spec.name), this.value, this.small);
    this.said = "";
  }

  show(frames) {
    const { name, unit, read, text, now, more } = this.spec;
    const last = frames.at(-1);
    const value = text(now ? read(last) : mean(frames.map(read)));
    this.value.textContent = value;
    this.small.textContent = more ? `${unit} · ${more(last)}` : unit;
    this.said = `${name} ${value} ${unit}`;
  }
}
