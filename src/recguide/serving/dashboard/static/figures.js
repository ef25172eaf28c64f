// Which figures there are, and how they are read from the frames.

import { number, percent } from "./format.js";

const BLOCKS = [[1, 1, "AR"], [2, 4, "2–4"], [5, 8, "5–8"], [9, 16, "9–16"], [17, 32, "17–32"], [33, 64, "33–64"]];

function sum(counts) {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

/** Share of a frame's rounds whose verified block lies in a range; null without rounds. */
function blockShare(low, high) {
  return (frame) => {
    const all = sum(frame.blocks);
    if (!all) return null;
    const within = Object.entries(frame.blocks).filter(([block]) => block >= low && block <= high);
    return within.reduce((total, [, count]) => total + count, 0) / all;
  };
}

/** The numbers at the top: [name, explanation, frames of the last seconds → text, → small print]. */
export const TILES = [
  { name: "Throughput", unit: "tokens/s", read: (f) => f.tokens, text: (v) => number(v, v < 10 ? 1 : 0) },
  { name: "Load", unit: "decoding", read: (f) => f.running, text: (v) => number(v, 0), now: true,
    more: (f) => `${number(f.waiting, 0)} waiting` },
  { name: "Acceptance", unit: "tokens a round", read: (f) => f.acceptance, text: (v) => number(v, 2) },
  { name: "TPF", unit: "tokens a forward", read: (f) => f.tpf, text: (v) => number(v, 2) },
  { name: "Reuse", unit: "of drafts, by branches", read: (f) => f.reuse, text: percent },
  { name: "Price", unit: "tokens a query token", read: (f) => f.price, text: (v) => number(v, 3) },
  { name: "KV cache", unit: "in use", read: (f) => f.kv_used, text: percent, now: true,
    more: (f) => `${percent(f.kv_cached)} prefixes` },
];

/**
 * The charts. kind: "lines", "stack" (values on top of one another) or "share" (the same in per cent).
 * A series has a name, a colour (a custom property of the style sheet) and reads one value of a frame.
 */
export const CHARTS = [
  { title: "Throughput", unit: "tokens a second", kind: "lines", fill: true,
    series: [{ name: "tokens/s", colour: "c1", read: (f) => f.tokens }] },
  { title: "Load", unit: "requests", kind: "lines", whole: true,
    series: [{ name: "decoding", colour: "c2", read: (f) => f.running },
      { name: "waiting", colour: "c4", dash: [5, 3], read: (f) => f.waiting }] },
  { title: "Acceptance", unit: "tokens", kind: "lines",
    series: [{ name: "a round", colour: "c1", read: (f) => f.acceptance },
      { name: "a forward (TPF)", colour: "c3", dash: [5, 3], read: (f) => f.tpf }] },
  { title: "Branch outcomes", unit: "branches a second", kind: "stack",
    series: [{ name: "reused", colour: "c3", read: (f) => f.branches.reused ?? 0 },
      { name: "in place only", colour: "c2", read: (f) => f.branches.covered ?? 0 },
      { name: "missed", colour: "c6", read: (f) => f.branches.missed ?? 0 }] },
  { title: "Block mix", unit: "share of rounds by slots verified", kind: "share",
    series: BLOCKS.map(([low, high, name], i) => ({ name, colour: `b${i}`, read: blockShare(low, high) })) },
  { title: "Price", unit: "output tokens a query token", kind: "lines", digits: 4,
    series: [{ name: "μ", colour: "c5", read: (f) => f.price }] },
  { title: "Forward", unit: "ms a step", kind: "lines",
    series: [{ name: "step", colour: "c2", read: (f) => f.step_ms }] },
  { title: "Query tokens", unit: "a forward", kind: "lines", fill: true,
    series: [{ name: "N", colour: "c4", read: (f) => f.query_tokens }] },
  { title: "KV cache", unit: "share of pages", kind: "share",
    series: [{ name: "in use", colour: "c1", read: (f) => f.kv_used },
      { name: "kept for prefixes", colour: "c6", read: (f) => f.kv_cached }] },
];
