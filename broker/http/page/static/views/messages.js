// The records of a topic: from and to an offset or a time, by key, or live.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, pathOf, useGet } from "../api.js";
import { plural } from "../format.js";
import { Empty, Notice } from "../parts.js";
import { Records } from "../records.js";
import { go, to } from "../router.js";
import { Tail } from "../tail.js";

const LIMITS = ["20", "50", "100", "500"];
// More are not kept in the page.
const KEPT_MAX = 5000;
// How often the broker is asked to go on by itself, for example because no record has the key.
const ROUNDS_MAX = 20;
const FROM = [["last", "The last"], ["start", "The beginning"], ["offset", "Offset"], ["time", "Time"], ["tail", "Live"]];
const UNTIL = [["", "The end"], ["offset", "Offset"], ["time", "Time"]];

export function Messages({ segments, query }) {
  const topic = segments[1];
  const known = useGet(pathOf("topics", topic), {}, 30);
  const partitions = known.data?.partitions?.map((each) => each.partition) ?? [];
  const wanted = { from: "last", limit: "50", ...query };
  return html`
    <p class="path"><a href=${to(["topics"])}>Topics</a> / <a href=${to(["topics", topic])}>${topic}</a></p>
    <h1 tabindex="-1">Messages</h1>
    <${Choice} key=${JSON.stringify(query)} wanted=${wanted} partitions=${partitions} onChoose=${(next) => go(segments, next)} />
    ${wanted.from === "tail"
      ? html`<${Tail} key=${topic + wanted.partition} topic=${topic} partition=${wanted.partition} />`
      : html`<${Found} key=${JSON.stringify(wanted)} topic=${topic} wanted=${wanted} />`}
  `;
}

function Choice({ wanted, partitions, onChoose }) {
  const [choice, setChoice] = useState(wanted);
  const set = (name) => (event) => setChoice({ ...choice, [name]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    const { partition, from, at, until, end, key, limit, committed } = choice;
    const tail = from === "tail";
    onChoose({
      partition, from, at: from === "offset" || from === "time" ? at : "", until: tail ? "" : until,
      end: until && !tail ? end : "", key: tail ? "" : key, limit: tail ? "" : limit, committed: tail ? "" : committed,
    });
  };
  const place = (kind, name) =>
    kind === "offset"
      ? html`<input type="number" min="0" step="1" required aria-label=${`${name}: offset`} value=${choice[name] ?? ""} onInput=${set(name)} />`
      : kind === "time"
        ? html`<input type="datetime-local" step="1" required aria-label=${`${name}: time`} value=${choice[name] ?? ""} onInput=${set(name)} />`
        : null;
  return html`<form class="choice-form" onSubmit=${submit}>
    <label>Partition<select value=${choice.partition ?? ""} onChange=${set("partition")}>
      <option value="">all</option>
      ${[...new Set([...partitions.map(String), choice.partition].filter(Boolean))].map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
    </select></label>
    <label>From<select value=${choice.from} onChange=${set("from")}>
      ${FROM.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
    </select></label>
    ${place(choice.from, "at")}
    ${choice.from !== "tail" && html`
      <label>To<select value=${choice.until ?? ""} onChange=${set("until")}>
        ${UNTIL.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
      </select></label>
      ${place(choice.until, "end")}
      <label>Key<input type="text" data-filter maxlength="1000" size="14" placeholder="any" value=${choice.key ?? ""} onInput=${set("key")} autocomplete="off" spellcheck="false" /></label>
      <label>Records<select value=${choice.limit} onChange=${set("limit")}>${LIMITS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${choice.committed === "true"} onChange=${(event) => setChoice({ ...choice, committed: event.target.checked ? "true" : "" })} /> Committed only</label>`}
    <button type="submit" class="primary">Show</button>
  </form>`;
}

/** The question that the choice stands for. */
export function questionOf({ partition, from, at, until, end, key, limit, committed }) {
  const place = {
    last: { last: limit },
    start: { offset: 0 },
    offset: { offset: at },
    time: { time: new Date(at).getTime() },
  }[from] ?? { last: limit };
  // The end is the last offset that is wanted, `before` the first that is not.
  return { partition, key, limit, committed, before: until === "offset" ? Number(end) + 1 : undefined, ...place };
}

/** Whether the record is younger than what was asked for. */
export const isBeyond = (record, { until, end }) => until === "time" && record.timestamp > new Date(end).getTime();

function Found({ topic, wanted }) {
  const [state, setState] = useState({ records: [], next: null, error: null, loading: true });
  const abort = useRef(new AbortController());
  /** Add so many records, or as many as there are: an answer may have fewer, and say where to go on. */
  const load = async (first) => {
    const { signal } = abort.current;
    setState((old) => ({ ...old, loading: true, error: null }));
    let question = first;
    let missing = Number(wanted.limit);
    try {
      for (let round = 0; question && round < ROUNDS_MAX; round += 1) {
        const { records, next } = await get(pathOf("topics", topic, "records"), question, signal);
        if (signal.aborted) return;
        const within = records.filter((record) => !isBeyond(record, wanted));
        const isOver = within.length < records.length; // records come in the order of time
        missing -= within.length;
        question = next && !isOver ? { ...questionOf({ ...wanted, from: "start" }), offset: undefined, positions: next.positions, limit: Math.max(1, missing) } : null;
        setState((old) => ({ ...old, records: [...old.records, ...within].slice(0, KEPT_MAX), next: question && { ...question, limit: wanted.limit } }));
        if (missing <= 0) break;
      }
      setState((old) => ({ ...old, loading: false }));
    } catch (error) {
      if (!signal.aborted) setState((old) => ({ ...old, error, loading: false }));
    }
  };
  useEffect(() => {
    load(questionOf(wanted));
    return () => abort.current.abort();
  }, []);
  const { records, next, error, loading } = state;
  const shown = wanted.from === "last" ? records.toReversed() : records;
  return html`
    ${error && html`<${Notice} kind="bad">${error.message}<//>`}
    ${shown.length > 0 && html`<${Records} label=${`Records of ${topic}`} records=${shown} />`}
    ${!shown.length && !loading && !error && html`<${Empty} title="There are no such records.">${next && "Not everything was looked at yet."}<//>`}
    <p class="pages" role="status">
      <span class="quiet">${loading ? "Loading." : `${plural(records.length, "record")}${wanted.from === "last" ? ", the newest first" : ""}.`}</span>
      ${next && !loading && records.length < KEPT_MAX && html`<button type="button" onClick=${() => load(next)}>Show more</button>`}
    </p>
  `;
}
