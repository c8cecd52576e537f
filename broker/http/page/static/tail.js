// The records of a topic as they arrive. Keeps the newest few hundred, and draws at most some times a second.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { pathOf } from "./api.js";
import { count } from "./format.js";
import { Empty, Notice } from "./parts.js";
import { Records } from "./records.js";
import { follow } from "./stream.js";

const KEPT = 200;
const DRAW_EVERY_MS = 250;

export function Tail({ topic, partition }) {
  const [shown, setShown] = useState({ records: [], total: 0, skipped: 0 });
  const [problem, setProblem] = useState("");
  const [paused, setPaused] = useState(false);
  const pausedNow = useRef(false);
  pausedNow.current = paused;
  useEffect(() => {
    const abort = new AbortController();
    const kept = { records: [], total: 0, skipped: 0 };
    let drawn = 0;
    const draw = setInterval(() => {
      if (pausedNow.current || drawn === kept.total) return;
      drawn = kept.total;
      setShown({ ...kept, records: [...kept.records] });
    }, DRAW_EVERY_MS);
    const take = ({ event, data }) => {
      if (event === "skipped") kept.skipped += data.events;
      if (event === "jumped") kept.skipped += data.to - data.from;
      if (data.offset === undefined) return;
      kept.total += 1;
      kept.records.unshift(data);
      if (kept.records.length > KEPT) kept.records.length = KEPT;
    };
    const tell = ({ following, error }) => setProblem(following ? "" : `${error?.message ?? "The stream has ended."} It is tried again.`);
    follow(pathOf("topics", topic, "tail"), { partition }, abort.signal, take, tell);
    return () => {
      abort.abort();
      clearInterval(draw);
    };
  }, []);
  return html`
    ${problem && html`<${Notice} kind="warn">${problem}<//>`}
    <p class="pages">
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      <span class="quiet">${count(shown.total)} records since this view was opened; the newest are on top.${shown.skipped > 0 && ` The broker has left out ${count(shown.skipped)}, which came too fast.`}</span>
    </p>
    ${shown.records.length
      ? html`<${Records} label=${`New records of ${topic}`} records=${shown.records} />`
      : !problem && html`<${Empty} title="Nothing has arrived yet.">Records appear here as producers send them.<//>`}
  `;
}
