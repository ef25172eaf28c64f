// Server-sent events over fetch: unlike EventSource it can send a key and a body.

/** Yields {event, data} of a streaming answer, data parsed. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const found = parse(part);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});  // the connection may be gone already
  }
}

function parse(text) {
  let event = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  const whole = data.join("\n");
  return whole && whole !== "[DONE]" ? { event, data: JSON.parse(whole) } : null;
}

/** What a refusal says, from the error object that the server's answers hold. */
export async function refusal(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}
