// Server-sent events, read by hand: the browser's own EventSource cannot say who asks, nor why a stream is refused.

import { useEffect, useState } from "./vendor/preact.js";
import { access, ApiError, ask, useLink } from "./api.js";

const RETRY_MS = 2000;
const REFUSED_MS = 15000;

/** The events of a stream, each {event, data} with parsed data, until `signal` ends it or the broker does. Raises ApiError. */
export async function* events(path, parameters, signal) {
  const reply = await ask(path, parameters, signal, "text/event-stream");
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
        const found = parsed(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (found) yield found;
      }
    }
  } catch (error) {
    if (!signal.aborted) throw new ApiError(0, "The stream has broken off.");
  }
}

/** An event; null for a comment, and for one that is not JSON. */
export function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [name, ...words] = line.split(":");
    const value = words.join(":").replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  try {
    return data.length ? { event, data: JSON.parse(data.join("\n")) } : null;
  } catch {
    return null;
  }
}

/** Follow a stream, and follow it again after it has ended, until `signal`. `tell`: {following} or {error}. */
export async function follow(path, parameters, signal, take, tell) {
  while (!signal.aborted) {
    let pause = RETRY_MS;
    let error = null;
    try {
      tell({ following: true });
      for await (const each of events(path, parameters, signal)) take(each);
    } catch (problem) {
      if (problem.status >= 400) pause = REFUSED_MS;
      error = problem;
    }
    if (signal.aborted) return;
    tell({ following: false, error });
    await new Promise((done) => setTimeout(done, pause));
  }
}

/** {latest data by the name of the event, following}: of ``/live``, while the page is visible. */
export function useLive(parameters) {
  useLink();
  const [state, setState] = useState({ following: false });
  const [hidden, setHidden] = useState(document.hidden);
  useEffect(() => {
    const seen = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", seen);
    return () => document.removeEventListener("visibilitychange", seen);
  }, []);
  useEffect(() => {
    if (hidden || access.wanted) return undefined;
    const abort = new AbortController();
    const take = ({ event, data }) => setState((old) => ({ ...old, following: true, [event]: data }));
    const tell = ({ following }) => following || setState((old) => ({ ...old, following: false }));
    follow("/live", parameters, abort.signal, take, tell);
    return () => abort.abort();
  }, [JSON.stringify(parameters), hidden, access.wanted, access.number]);
  return state;
}
