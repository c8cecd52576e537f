// The broker's JSON: one-time and repeated questions, streams of events, and whether the broker answers at all.
//
// Questions are repeated only while the page is visible. If the broker is away, one question after the other is tried with a
// growing pause (`link`), and all views keep what they have shown until then.

import { useEffect, useRef, useState } from "./vendor/preact.js";

export const ROOT = "/api/v1";
const TIMEOUT_MS = 15000;
const PAUSES_S = [1, 2, 4, 8];

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// -- whether the broker answers -------------------------------------------------------------------------------------------

/** `up`: null until the first answer. `wait`: s until the next try. */
export const link = { up: null, since: Date.now(), tries: 0, wait: 0 };
const watchers = new Set();

export function useLink() {
  const [, again] = useState(0);
  useEffect(() => {
    const watcher = () => again((n) => n + 1);
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, []);
  return link;
}

function setLink(up) {
  if (up && link.up && !link.tries) return;
  if (link.up !== up) link.since = Date.now();
  link.up = up;
  link.tries = up ? 0 : link.tries + 1;
  link.wait = up ? 0 : PAUSES_S[Math.min(link.tries, PAUSES_S.length) - 1];
  for (const watcher of [...watchers]) watcher();
}

// -- one question ---------------------------------------------------------------------------------------------------------

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const tail = query.toString();
  return ROOT + path + (tail ? `?${tail}` : "");
}

/** The path of segments that may contain anything. */
export const pathOf = (...segments) => "/" + segments.map(encodeURIComponent).join("/");

export async function get(path, parameters, signal) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), TIMEOUT_MS);
  const stop = () => abort.abort();
  signal?.addEventListener("abort", stop);
  try {
    const reply = await fetch(address(path, parameters), { signal: abort.signal, cache: "no-store" });
    const body = await reply.text();
    setLink(true);
    return understood(reply.status, body);
  } catch (error) {
    if (error instanceof ApiError || signal?.aborted) throw error;
    setLink(false);
    throw new ApiError(0, "The broker does not answer.");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

function understood(status, body) {
  let value = null;
  try {
    value = JSON.parse(body);
  } catch {
    if (status === 200) throw new ApiError(status, "The answer is not JSON.");
  }
  if (status === 200) return value;
  throw new ApiError(status, value?.reason ?? `The broker answers with status ${status}.`);
}

// -- repeated questions ---------------------------------------------------------------------------------------------------

/**
 * The answer, asked for again every so many seconds. `path` null asks nothing.
 * What was answered before stays while the same question is asked again; `error` says that the last one failed.
 */
export function useGet(path, parameters = {}, everyS = 5) {
  const [state, setState] = useState({ data: null, error: null, of: null });
  const question = path === null ? null : address(path, parameters);
  const refresh = useRef(() => {});
  useEffect(() => {
    if (question === null) return undefined;
    const abort = new AbortController();
    let timer = 0;
    let asking = false;
    const ask = async () => {
      clearTimeout(timer);
      if (asking || abort.signal.aborted) return;
      asking = true;
      try {
        const data = await get(path, parameters, abort.signal);
        if (!abort.signal.aborted) setState({ data, error: null, of: question });
      } catch (error) {
        if (!abort.signal.aborted) {
          setState((old) => ({ data: old.of === question ? old.data : null, error, of: question }));
        }
      }
      asking = false;
      const pause = link.up === false ? link.wait : everyS;
      if (!abort.signal.aborted && pause && !document.hidden) timer = setTimeout(ask, pause * 1000);
    };
    const seen = () => document.hidden || ask();
    document.addEventListener("visibilitychange", seen);
    refresh.current = ask;
    ask();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [question, everyS]);
  const current = state.of === question ? state : { data: null, error: null };
  return { ...current, refresh: () => refresh.current() };
}

// -- streams --------------------------------------------------------------------------------------------------------------

/** The events of a stream, each `{event, data}` with parsed data, until `signal` ends it or the broker does. */
export async function* events(path, parameters, signal) {
  let reply;
  try {
    reply = await fetch(address(path, parameters), { signal, cache: "no-store", headers: { accept: "text/event-stream" } });
  } catch (error) {
    if (signal.aborted) return;
    throw new ApiError(0, "The broker does not answer.");
  }
  if (reply.status !== 200) understood(reply.status, await reply.text());
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value.replaceAll("\r", "");
      for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
        const found = parsed(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (found) yield found;
      }
    }
  } catch (error) {
    if (!signal.aborted) throw new ApiError(0, "The stream has ended.");
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [name, ...words] = line.split(":");
    const value = words.join(":").replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  if (!data.length) return null;
  try {
    return { event, data: JSON.parse(data.join("\n")) };
  } catch {
    return null;
  }
}
