// The broker's JSON: single questions, questions that are repeated, and whether the broker answers at all.
//
// Questions are repeated only while the page is visible. If the broker is away, each is tried again after a growing pause, and the
// views keep what they have shown until then. If the broker wants to know who asks, `access.wanted` says so (login.js).

import { useEffect, useRef, useState } from "./vendor/preact.js";

const ROOT = "/api/v1";
const TIMEOUT_MS = 15000;
const PAUSES_S = [1, 2, 4, 8];
// What is not there may come to be, but needs no attention.
const MISSING_PAUSE_S = 30;

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// -- whether the broker answers, and whom ---------------------------------------------------------------------------------

/** `up`: null until the first answer. `wait`: s until the next try. */
export const link = { up: null, since: Date.now(), tries: 0, wait: 0 };
/** `header`: what proves who asks; it is kept nowhere but here. `number` counts the proofs. */
export const access = { wanted: false, header: null, number: 0 };
const watchers = new Set();

function changed() {
  for (const watcher of [...watchers]) watcher();
}

/** Draws again when `link` or `access` changes. */
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
  changed();
}

/** Ask from now on with this proof. */
export function prove(header) {
  access.header = header;
  access.wanted = false;
  access.number += 1;
  changed();
}

// -- one question ---------------------------------------------------------------------------------------------------------

/** The path of segments that may contain anything. */
export const pathOf = (...segments) => "/" + segments.map(encodeURIComponent).join("/");

/** A parameter that is a function is called when the question is asked. */
function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    const word = typeof value === "function" ? value() : value;
    if (word !== undefined && word !== null && word !== "") query.set(name, word);
  }
  const tail = query.toString();
  return ROOT + path + (tail ? `?${tail}` : "");
}

/** The reply to a question. Raises ApiError: 0 if there is none. */
export async function ask(path, parameters, signal, accept = "application/json") {
  // With X-Requested-With the broker leaves it to the page to ask for a password, instead of the browser.
  const headers = { accept, "x-requested-with": "XMLHttpRequest", ...(access.header && { authorization: access.header }) };
  const { number } = access;
  let reply;
  try {
    reply = await fetch(address(path, parameters), { signal, headers, cache: "no-store", redirect: "manual" });
    setLink(true);
    // A redirect leads to another node, which a page of this one may not ask.
    if (reply.type === "opaqueredirect") throw new ApiError(307, "Another node has this. The overview leads to the pages of the nodes.");
    if (reply.status === 200) return reply;
    const body = await reply.text();
    if (reply.status === 401 && number === access.number && !access.wanted) {
      access.wanted = true;
      changed();
    }
    throw new ApiError(reply.status, reasonIn(body) ?? `The broker answers with status ${reply.status}.`);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    if (!signal?.aborted || signal.reason === TIMED_OUT) setLink(false);
    throw new ApiError(0, "The broker does not answer.");
  }
}

const TIMED_OUT = "timed out";

function reasonIn(body) {
  try {
    return JSON.parse(body).reason;
  } catch {
    return undefined;
  }
}

export async function get(path, parameters, signal) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(TIMED_OUT), TIMEOUT_MS);
  const stop = () => abort.abort();
  signal?.addEventListener("abort", stop);
  try {
    const reply = await ask(path, parameters, abort.signal);
    return await reply.json();
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(0, "The answer of the broker has broken off.");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

// -- repeated questions ---------------------------------------------------------------------------------------------------

/**
 * {data, error, refresh}: the answer, asked for again every so many seconds (0: only once). `path` null asks nothing.
 * What was answered before stays while the same question is asked again; `error` says that the last one failed.
 */
export function useGet(path, parameters = {}, everyS = 5) {
  useLink();
  const [state, setState] = useState({ data: null, error: null, of: null });
  const question = path === null ? null : `${path} ${JSON.stringify(parameters, (_, value) => (typeof value === "function" ? String(value.of) : value))}`;
  const refresh = useRef(() => {});
  useEffect(() => {
    if (question === null) return undefined;
    const abort = new AbortController();
    let timer = 0;
    let asking = false;
    const again = async () => {
      clearTimeout(timer);
      if (asking || abort.signal.aborted || access.wanted) return;
      asking = true;
      let pauseS = everyS;
      try {
        const data = await get(path, parameters, abort.signal);
        if (!abort.signal.aborted) setState({ data, error: null, of: question });
      } catch (error) {
        if (error.status === 404) pauseS = Math.max(everyS, MISSING_PAUSE_S);
        if (!abort.signal.aborted) setState((old) => ({ data: old.of === question ? old.data : null, error, of: question }));
      }
      asking = false;
      if (link.up === false) pauseS = link.wait;
      if (!abort.signal.aborted && pauseS && !document.hidden) timer = setTimeout(again, pauseS * 1000);
    };
    const seen = () => document.hidden || again();
    document.addEventListener("visibilitychange", seen);
    refresh.current = again;
    again();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [question, everyS, access.number]);
  const current = state.of === question ? state : { data: null, error: null };
  return { data: current.data, error: current.error, refresh: () => refresh.current() };
}
