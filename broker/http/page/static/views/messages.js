// The records of a topic: from and to an offset or a time, by key, or live.

import { html, useEffect, useState } from "../vendor/preact.js";
import { get, pathOf, useGet } from "../api.js";
import { Empty, Notice } from "../parts.js";
import { idOf, Records } from "../records.js";
import { go, to } from "../router.js";
import { Tail } from "../tail.js";

const LIMITS = ["20", "50", "100", "500"];
// More are not kept in the page.
const KEPT_MAX = 5000;
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
    const { partition, from, at, until, end, key, limit } = choice;
    const tail = from === "tail";
    onChoose({
      partition, from, at: from === "offset" || from === "time" ? at : "", until: tail ? "" : until,
      end: until && !tail ? end : "", key: tail ? "" : key, limit: tail ? "" : limit,
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
      <label>Records<select value=${choice.limit} onChange=${set("limit")}>${LIMITS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}
    <button type="submit" class="primary">Show</button>
  </form>`;
}

/** The question that the choice stands for. */
export function questionOf({ partition, from, at, key, limit }) {
  const place = {
    last: { last: limit },
    start: { offset: 0 },
    offset: { offset: at },
    time: { time: new Date(at).getTime() },
  }[from] ?? { last: limit };
  return { partition, key, limit, ...place };
}

/** Whether the record comes after what was asked for. */
export function isBeyond(record, { until, end }) {
  if (until === "offset") return record.offset > Number(end);
  return until === "time" && record.timestamp > new Date(end).getTime();
}

function Found({ topic, wanted }) {
  const [state, setState] = useState({ records: [], next: null, error: null, loading: true, stopped: false });
  const load = async (question, signal) => {
    setState((old) => ({ ...old, loading: true, error: null }));
    try {
      const answer = await get(pathOf("topics", topic, "records"), question, signal);
      setState((old) => {
        const within = answer.records.filter((record) => !isBeyond(record, wanted));
        const known = new Set(old.records.map(idOf));
        const records = [...old.records, ...within.filter((record) => !known.has(idOf(record)))].slice(0, KEPT_MAX);
        const over = within.length < answer.records.length && wanted.partition;
        return { records, next: over ? null : answer.next, error: null, loading: false };
      });
    } catch (error) {
      if (!signal?.aborted) setState((old) => ({ ...old, error, loading: false }));
    }
  };
  useEffect(() => {
    const abort = new AbortController();
    load(questionOf(wanted), abort.signal);
    return () => abort.abort();
  }, []);
  const { records, next, error, loading } = state;
  const more = () => load({ ...questionOf({ ...wanted, from: "offset", at: next.offset }), partition: next.partition });
  return html`
    ${error && html`<${Notice} kind="bad">${error.message}<//>`}
    ${records.length > 0 && html`<${Records} label=${`Records of ${topic}`} records=${records} />`}
    ${!records.length && !loading && !error && html`<${Empty} title="There are no such records." />`}
    <p class="pages" role="status">
      <span class="quiet">${loading ? "Loading." : `${records.length} records.`}</span>
      ${next && !loading && records.length < KEPT_MAX && html`<button type="button" onClick=${more}>Show more</button>`}
    </p>
  `;
}
