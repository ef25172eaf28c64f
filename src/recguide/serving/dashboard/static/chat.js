// The playground: answers whose tokens are coloured by how they came to be, and plain AR beside them.

import { element, number, percent } from "./format.js";
import { authorised } from "./key.js";
import { events, refusal } from "./stream.js";

const ORIGINS = {
  accepted: "accepted draft",
  reused: "accepted, drafted by a branch",
  correction: "correction",
  bonus: "bonus",
  diffusion: "diffused",
  ar: "AR step",
  prefill: "prefill",
};

const ON_CPU = "This server runs on a CPU, where a forward over more tokens takes longer: fewer forwards " +
  "need not take less time here. On a GPU at low load a hundred tokens cost about as much as one.";

export class Playground {
  constructor() {
    this.messages = [];
    this.running = null;
    this.onCpu = false;
    this.log = document.getElementById("log");
    this.empty = this.log.firstElementChild;
    this.message = document.getElementById("message");
    this.options = document.getElementById("options");
    this.send = document.getElementById("send");
    this.stop = document.getElementById("stop");
    document.getElementById("origins").append(...Object.entries(ORIGINS).map(([origin, meaning]) =>
      element("li", {}, element("span", { class: `token o-${origin}` }, meaning))));
    document.getElementById("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask();
      }
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    document.getElementById("clear").addEventListener("click", () => this.clear());
    this.options.addEventListener("submit", (event) => event.preventDefault());
    this.options.elements.coloured.addEventListener("change", ({ target }) =>
      this.log.classList.toggle("plain", !target.checked));
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren(this.empty);
    this.message.focus();
  }

  async ask() {
    const text = this.message.value.trim();
    if (!text || this.running || !this.options.reportValidity()) return;
    this.message.value = "";
    this.empty.remove();
    this.add("user", element("p", { class: "said" }, text));
    this.messages.push({ role: "user", content: text });
    this.running = new AbortController();
    this.send.disabled = true;
    this.stop.disabled = false;
    try {
      const asked = [...this.messages];
      const answer = await this.answer(asked, this.chosen());
      if (!answer) return;
      this.messages.push({ role: "assistant", content: answer.text });
      if (this.options.elements.compare.checked && answer.done) await this.compare(asked, answer);
    } finally {
      this.running = null;
      this.send.disabled = false;
      this.stop.disabled = true;
    }
  }

  /** What the options say, as fields of a chat completion; empty ones are left to the server. */
  chosen() {
    const field = (name) => this.options.elements[name].value;
    const made = {};
    for (const name of ["temperature", "seed", "max_tokens"]) {
      if (field(name) !== "") made[name] = Number(field(name));
    }
    const speculation = {};
    if (field("method")) speculation.method = field("method");
    if (field("block_size")) speculation.block_size = Number(field("block_size"));
    if (Object.keys(speculation).length) made.speculation = speculation;
    return made;
  }

  add(role, ...content) {
    const box = element("article", { class: `turn ${role}`, "aria-label": role === "user" ? "You" : "Assistant" }, ...content);
    this.log.append(box);
    this.follow();
    return box;
  }

  follow() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Streams an answer into the log; null if it failed. */
  async answer(messages, options) {
    const said = element("p", { class: "said", "aria-busy": "true" });
    const figures = element("div", { class: "figures" });
    const box = this.add("assistant", said, figures);
    const answer = { text: "", counts: {}, done: null, figures, box };
    try {
      await this.stream(messages, options, (pieces) => {
        const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 40;
        said.append(...pieces.map(([text, origin]) => {
          answer.text += text;
          answer.counts[origin] = (answer.counts[origin] ?? 0) + 1;
          return element("span", { class: `token o-${origin}`, title: ORIGINS[origin] ?? origin }, text);
        }));
        if (atEnd) this.follow();
      }, (done) => {
        answer.done = done;
      });
    } catch (error) {
      const stopped = error.name === "AbortError";
      figures.append(element("p", { class: stopped ? "hint" : "error", role: stopped ? "status" : "alert" },
        stopped ? "Stopped." : error.message));
      return stopped ? answer : this.failed();
    } finally {
      said.setAttribute("aria-busy", "false");
    }
    figures.append(share(answer.counts), runs([[this.named(options), answer.done]]));
    this.follow();
    return answer;
  }

  /** A refused message does not stay in the conversation. */
  failed() {
    this.messages.pop();
    return null;
  }

  async compare(messages, answer) {
    const wait = element("p", { class: "hint", role: "status" }, "Running plain AR …");
    answer.figures.append(wait);
    let text = "", plain = null;
    const options = this.chosen();
    try {
      await this.stream(messages, { ...options, speculation: false }, (pieces) => {
        text += pieces.map(([piece]) => piece).join("");
      }, (done) => {
        plain = done;
      });
    } catch (error) {
      wait.textContent = error.name === "AbortError" ? "Stopped." : error.message;
      return;
    }
    const same = text === answer.text;
    wait.className = same ? "same" : "error";
    wait.textContent = same ? "✓ The text is the same, token for token." : "✗ The texts differ.";
    answer.figures.querySelector(".scroll").replaceWith(
      runs([[this.named(options), answer.done], ["plain AR", plain]]));
    if (this.onCpu) answer.figures.append(element("p", { class: "hint" }, ON_CPU));
    this.follow();
  }

  named(options) {
    return options.speculation?.method ?? "the server's method";
  }

  /** Asks the server's own API: text, origins and bytes of every token, and what speculation did. */
  async stream(messages, options, onPieces, onDone) {
    const began = performance.now();
    const answer = await authorised("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ messages, ...options, stream: true, stream_options: { include_usage: true },
        logprobs: true, return_origins: true }),
      signal: this.running.signal,
    });
    if (!answer.ok) throw new Error(await refusal(answer));
    const pieces = new Pieces();
    for await (const { data } of events(answer)) {
      if (data.error) throw new Error(data.error.message);
      for (const choice of data.choices) onPieces(pieces.cut(choice));
      if (data.usage) {
        onDone({ tokens: data.usage.completion_tokens, metrics: data.metrics, seconds: (performance.now() - began) / 1000 });
      }
    }
  }
}

/** Cuts the text of a stream where one token's ends; the text is that of the chunks, whatever the tokens say. */
class Pieces {
  constructor() {
    this.decoder = new TextDecoder();
    this.spans = [];
  }

  cut(choice) {
    const origins = choice.origins ?? [];
    (choice.logprobs?.content ?? []).forEach((token, i) => {
      const text = this.decoder.decode(new Uint8Array(token.bytes ?? []), { stream: true });
      if (text) this.spans.push([text.length, origins[i]]);
    });
    let rest = (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "");
    const pieces = [];
    while (rest) {
      const [length, origin] = this.spans.shift() ?? [rest.length, "prefill"];
      pieces.push([rest.slice(0, length), origin]);
      if (length > rest.length) this.spans.unshift([length - rest.length, origin]);
      rest = rest.slice(length);
    }
    return pieces;
  }
}

/** How many tokens came to be in which way, as a bar that says so. */
function share(counts) {
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const known = Object.keys(ORIGINS).filter((origin) => counts[origin]);
  const said = known.map((origin) => `${ORIGINS[origin]} ${percent(counts[origin] / all)}`).join(", ");
  return element("div", { class: "share", role: "img", "aria-label": said, title: said }, ...known.map((origin) => {
    const part = element("span", { class: `part o-${origin}` });
    part.style.flexGrow = counts[origin];
    return part;
  }));
}

/** Drafts that branches made, beside a verification, an AR step or the prefill. */
function byBranches(spec) {
  return Object.values(spec.branches).reduce((sum, branch) => sum + branch.reused, spec.drafts_begun);
}

/** A line a run: [name, what the server said when it was done]. */
function runs(all) {
  const heads = ["", "Tokens", "Tokens/s", "Seconds", "To first", "Forwards", "TPF", "Acceptance", "Drafts reused"];
  return element("div", { class: "scroll" }, element("table", { class: "runs" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...all.filter(([, done]) => done).map(([name, done]) => {
      const { speculative_decoding: spec, tokens_per_second: speed } = done.metrics;
      const cells = [number(done.tokens, 0), number(speed, 1), number(done.seconds, 2),
        number(done.metrics.time_to_first_token_ms / 1000, 2), number(spec.forwards, 0),
        number(spec.tokens_per_forward, 2), spec.num_spec_steps ? number(spec.mean_acceptance_length, 2) : "–",
        spec.num_spec_steps ? percent(byBranches(spec) / spec.num_spec_steps) : "–"];
      return element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell)));
    }))));
}
