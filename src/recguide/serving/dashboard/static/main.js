// Starts the page.

import { Playground } from "./chat.js";
import { follow } from "./feed.js";
import { authorised } from "./key.js";
import { Live } from "./live.js";
import { tabs } from "./tabs.js";
import { Timelines } from "./timelines.js";

const live = new Live();
const timelines = new Timelines();
const playground = new Playground();
tabs(document.querySelector('[role="tablist"]'));

async function tellAbout() {
  const answer = await authorised("dashboard/about");
  if (!answer.ok) return;
  const { model, device, method, version } = await answer.json();
  playground.onCpu = device?.startsWith("cpu") ?? false;
  if (!model) setTimeout(tellAbout, 2000);  // still loading
  document.getElementById("about").textContent = [model, device, method && `method ${method}`, `RecGuide ${version}`]
    .filter(Boolean).join(" · ");
  if (model) document.title = `${model} · RecGuide`;
}

const handlers = {
  history: ({ frames, rounds }) => {
    live.history(frames);
    timelines.history(rounds);
    tellAbout();
  },
  frame: ({ frame, rounds }) => {
    live.frame(frame);
    timelines.frame(frame.at, rounds);
  },
};

follow((event, data) => handlers[event]?.(data), (state, why) => {
  const shown = document.getElementById("state");
  shown.dataset.state = state;
  shown.textContent = why;
});
