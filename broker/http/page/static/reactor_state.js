// Where the reactor backs up, told from its figures, and what each reason for a mute means. Pure.

import { count, plural, share } from "./format.js";

export const RECEPTIVE = "receptive";

// `kind`: how it is drawn; `badge`: how it is marked in the table.
const REASONS = {
  response_pending: { label: "in a request", kind: "pending", badge: "info", doc: "One request at a time: it is worked on, or waits for an event such as new records." },
  response_unsent: { label: "answer unsent", kind: "slow", badge: "warn", doc: "The answer waits for the client to read." },
  throttled: { label: "throttled", kind: "slow", badge: "warn", doc: "The client has used up its quota." },
  channel_full: { label: "waiting for the channel", kind: "stuck", badge: "bad", doc: "The request channel is full." },
  memory_short: { label: "waiting for memory", kind: "stuck", badge: "bad", doc: "The memory for requests is used up." },
  unwritable: { label: "not reading", kind: "slow", badge: "warn", doc: "The client does not read what is sent to it." },
  draining: { label: "draining", kind: "going", badge: "", doc: "The broker stops: no further request is taken." },
  closing: { label: "closing", kind: "going", badge: "", doc: "The connection ends once its bytes have left." },
  handshaking: { label: "TLS handshake", kind: "going", badge: "", doc: "The TLS handshake has not ended." },
};

export const reasonOf = (reason) =>
  REASONS[String(reason).toLowerCase()] ?? { label: String(reason).toLowerCase().replaceAll("_", " "), kind: "slow", badge: "warn", doc: "" };

/** How full something is, as a colour. */
export function level(used, capacity) {
  if (!(capacity > 0) || !(used > 0)) return "";
  const part = used / capacity;
  return part >= 0.9 ? "bad" : part >= 0.6 ? "warn" : "good";
}

/** {where, kind, text}: the stage that the others wait for. Stages nearer the end come first: what waits before them follows. */
export function backlog({ processors = [], channel = {}, handlers = {}, memory = {} }) {
  const held = (reason) =>
    processors.reduce((sum, { muted = {} }) => sum + Object.entries(muted).reduce((n, [name, number]) => n + (name.toLowerCase() === reason ? number : 0), 0), 0);
  const waiting = held("channel_full");
  if (waiting > 0 || level(channel.depth, channel.capacity) === "bad") {
    const all = handlers.threads > 0 && handlers.busy >= handlers.threads;
    return {
      where: all ? "handlers" : "channel",
      kind: "bad",
      text: `It backs up before the handlers: ${count(channel.depth)} of ${count(channel.capacity)} places of the request channel are taken`
        + `${all ? ", all handlers are busy" : ""}${waiting ? `, and ${plural(waiting, "connection waits", "connections wait")} for a place` : ""}.`,
    };
  }
  const short = held("memory_short");
  if (short > 0 || level(memory.used, memory.capacity) === "bad") {
    return { where: "channel", kind: "bad", text: `The memory for requests is ${share(memory.used / memory.capacity)} used; ${plural(short, "connection waits", "connections wait")} for it.` };
  }
  const full = processors.filter(({ idle }) => typeof idle === "number" && idle < 0.1);
  if (full.length) {
    return { where: "processors", kind: "warn", text: `${plural(full.length, "processor has", "processors have")} hardly any idle time: the broker reads and writes as fast as it can.` };
  }
  if (handlers.threads > 0 && handlers.busy >= handlers.threads) {
    return { where: "handlers", kind: "warn", text: "All handlers are busy. Requests still find a place in the channel." };
  }
  const slow = held("unwritable") + held("response_unsent");
  const throttled = held("throttled");
  if (slow + throttled > 0) {
    const parts = [slow && `${plural(slow, "client does", "clients do")} not read what the broker sends`, throttled && `${plural(throttled, "client is", "clients are")} throttled by a quota`];
    return { where: "processors", kind: "warn", text: `The broker itself waits for nothing: ${parts.filter(Boolean).join(", and ")}.` };
  }
  return { where: null, kind: "good", text: "Nothing backs up: every request finds a place and a handler." };
}
