// Recent requests, round by round.

import { clock, colour, element, mean, number, percent } from "./format.js";

const SHOWN_S = 30;
const KEPT = 400;
const LINE_HEIGHT = 30;
const STALE_S = 10;
const AT = 0, BY = 1, BLOCK = 2, ACCEPTANCE = 3, TOKENS = 4, FATE = 5, FINISHED = 6;  // of a round's row

export class Timelines {
  constructor() {
    this.lines = new Map();
    this.chosen = null;
    this.now = 0;
    this.body = document.querySelector("#timelines tbody");
    document.addEventListener("themechange", () => this.draw());
    window.addEventListener("resize", () => this.draw());
  }

  history(rounds) {
    for (const line of this.lines.values()) line.row.remove();
    this.lines.clear();
    this.take(rounds);
  }

  frame(at, rounds) {
    this.now = at;
    this.take(rounds);
  }

  take(rounds) {
    for (const [request, rows] of Object.entries(rounds)) {
      const line = this.lines.get(request) ?? this.begin(request);
      line.rounds = [...line.rounds, ...rows].slice(-KEPT);
      line.count += rows.length;
      for (const row of rows) {
        line.tokens += row[TOKENS];
        line.finished ||= row[FINISHED];
        this.now = Math.max(this.now, row[AT]);
      }
    }
    this.forget();
    this.draw();
  }

  begin(request) {
    const line = { request, rounds: [], count: 0, tokens: 0, finished: false };
    line.button = element("button", { type: "button", class: "link", "aria-expanded": "false", "aria-controls": "rounds" },
      `#${request}`);
    line.button.addEventListener("click", () => this.choose(request));
    line.cells = Array.from({ length: 6 }, () => element("td"));
    line.canvas = element("canvas", { height: LINE_HEIGHT, "aria-hidden": "true" });
    line.row = element("tr", {}, element("th", { scope: "row" }, line.button), ...line.cells,
      element("td", { class: "wide" }, line.canvas));
    this.lines.set(request, line);
    this.body.prepend(line.row);
    return line;
  }

  /** Keeps the newest two dozen. */
  forget() {
    for (const [request, line] of this.lines) {
      if (this.lines.size <= 24) return;
      if (request === this.chosen) continue;
      line.row.remove();
      this.lines.delete(request);
    }
  }

  choose(request) {
    this.chosen = this.chosen === request ? null : request;
    for (const line of this.lines.values()) {
      line.button.setAttribute("aria-expanded", line.request === this.chosen);
      line.row.classList.toggle("chosen", line.request === this.chosen);
    }
    document.getElementById("rounds").hidden = this.chosen === null;
    this.drawn = null;
    this.draw();
  }

  draw() {
    document.getElementById("no-requests").hidden = this.lines.size > 0;
    if (document.getElementById("requests").hidden || document.hidden) return;
    for (const line of this.lines.values()) {
      this.tell(line);
      this.drawLine(line);
    }
    if (this.chosen !== null) this.drawRounds(this.lines.get(this.chosen));
  }

  tell(line) {
    const drafted = line.rounds.filter((row) => row[BY] !== null);
    const blocks = [...new Set(line.rounds.slice(-60).map((row) => row[BLOCK]))].sort((a, b) => a - b);
    const gone = this.now - line.rounds.at(-1)[AT] > STALE_S;
    const said = [
      line.finished ? "finished" : gone ? "ended" : "decoding",
      number(line.tokens, 0),
      number(line.count, 0),
      number(mean(drafted.map((row) => row[ACCEPTANCE])), 2),
      drafted.length ? percent(drafted.filter((row) => row[BY] !== "draft").length / drafted.length) : "–",
      blocks.join(" "),
    ];
    line.cells.forEach((cell, i) => {
      cell.textContent = said[i];
    });
    line.cells[0].className = line.finished || gone ? "ended" : "running";
  }

  drawLine(line) {
    const canvas = line.canvas;
    const width = canvas.parentElement.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = LINE_HEIGHT * ratio;
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    paint.fillStyle = colour("line");
    paint.fillRect(0, LINE_HEIGHT - 1, width, 1);
    const place = (at) => width * (1 - (this.now - at) / SHOWN_S);
    const most = Math.max(8, ...line.rounds.map((row) => row[BLOCK]));
    let from = null;
    for (const row of line.rounds) {
      const to = place(row[AT]);
      if (to >= 0) {
        const step = from === null ? 3 : Math.min(to - from, 14);
        const height = Math.max(2, (LINE_HEIGHT - 3) * row[ACCEPTANCE] / most);
        paint.fillStyle = colour(kind(row));
        paint.fillRect(to - step, LINE_HEIGHT - 1 - height, Math.max(1, step - (step > 3 ? 1 : 0)), height);
      }
      from = to;
    }
  }

  /** The rounds of the chosen request, as bars and as a table. */
  drawRounds(line) {
    if (this.drawn === line.count) return;
    this.drawn = line.count;
    const rows = line.rounds.slice(-120);
    const first = line.count - rows.length + 1;
    document.getElementById("rounds-title").textContent =
      `Request #${line.request}: ${number(line.tokens, 0)} tokens in ${number(line.count, 0)} rounds`;
    const bars = document.getElementById("round-bars");
    const atEnd = bars.scrollLeft + bars.clientWidth >= bars.scrollWidth - 8;
    bars.setAttribute("aria-label", `The last ${rows.length} rounds; mean acceptance ` +
      number(mean(rows.map((row) => row[ACCEPTANCE])), 2));
    const longest = Math.max(...rows.map((row) => row[BLOCK]));
    bars.replaceChildren(...rows.map((row, i) => bar(row, first + i, longest)));
    if (atEnd) bars.scrollLeft = bars.scrollWidth;
    document.getElementById("round-rows").replaceChildren(...rows.map((row, i) => element("tr", {},
      element("th", { scope: "row" }, String(first + i)),
      ...[drafter(row), row[BLOCK], row[ACCEPTANCE], row[TOKENS], row[FATE] ?? "–"].map((cell) =>
        element("td", {}, String(cell))))).reverse());
  }
}

function kind(row) {
  return `by-${row[BY] ?? "ar"}`;
}

function drafter(row) {
  return row[BY] === null ? "AR step" : row[BY] === "draft" ? "draft forward" : `${row[BY]} branch`;
}

function bar(row, index, longest) {
  const outer = element("span", { class: `round ${kind(row)}`, title:
    `Round ${index}, ${clock(row[AT])}: ${drafter(row)}, ${row[BLOCK]} slots, acceptance ${row[ACCEPTANCE]}` +
    (row[FATE] ? `, branch ${row[FATE]}` : "") });
  const box = element("span", { class: "slots" });
  const fill = element("span", { class: "fill" });
  box.style.height = `${6 + 90 * row[BLOCK] / longest}px`;
  fill.style.height = `${100 * row[ACCEPTANCE] / row[BLOCK]}%`;
  box.append(fill);
  outer.append(box, element("span", { class: `fate ${row[FATE] ?? ""}` }), element("span", { class: "count" }, String(row[ACCEPTANCE])));
  return outer;
}
