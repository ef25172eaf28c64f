// The live feed: history first, then frames; it connects anew for ever.

import { authorised } from "./key.js";
import { events, refusal } from "./stream.js";

const WAIT_MS = [500, 1000, 2000, 5000];

/** Calls onEvent(name, data) and onState("live" | "connecting" | "lost", why). */
export async function follow(onEvent, onState) {
  for (let failures = 0; ; failures++) {
    try {
      const answer = await authorised("dashboard/events");
      if (!answer.ok) throw new Error(await refusal(answer));
      onState("live", "live");
      for await (const { event, data } of events(answer)) {
        failures = 0;
        onEvent(event, data);
      }
      onState("lost", "connection lost");
    } catch (error) {
      onState("lost", error.message);
    }
    await new Promise((done) => setTimeout(done, WAIT_MS[Math.min(failures, WAIT_MS.length - 1)]));
  }
}
