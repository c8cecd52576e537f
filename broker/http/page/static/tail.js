// The records of a topic as they arrive. Keeps the newest few hundred, and draws at most some times a second.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { events, pathOf } from "./api.js";
import { count } from "./format.js";
import { Empty, Notice } from "./parts.js";
import { Records } from "./records.js";

const KEPT = 200;
const DRAW_EVERY_MS = 250;
const RETRY_MS = 2000;

export function Tail({ topic, partition }) {
  const [shown, setShown] = useState({ records: [], total: 0 });
  const [state, setState] = useState({ text: "Connecting.", bad: false });
  const [paused, setPaused] = useState(false);
  const pausedNow = useRef(false);
  pausedNow.current = paused;
  useEffect(() => {
    const abort = new AbortController();
    const kept = { records: [], total: 0 };
    let drawn = 0;
    const draw = setInterval(() => {
      if (pausedNow.current || drawn === kept.total) return;
      drawn = kept.total;
      setShown({ records: [...kept.records], total: kept.total });
    }, DRAW_EVERY_MS);
    const follow = async () => {
      while (!abort.signal.aborted) {
        try {
          setState({ text: "Waiting for records.", bad: false });
          for await (const { data } of events(pathOf("topics", topic, "tail"), { partition }, abort.signal)) {
            if (data?.offset === undefined) continue;
            kept.total += 1;
            kept.records.unshift(data);
            if (kept.records.length > KEPT) kept.records.length = KEPT;
          }
          setState({ text: "The stream has ended; the page follows it again.", bad: true });
        } catch (error) {
          setState({ text: error.message, bad: true });
          if (error.status >= 400 && error.status < 500) return;
        }
        await new Promise((done) => setTimeout(done, RETRY_MS));
      }
    };
    follow();
    return () => {
      abort.abort();
      clearInterval(draw);
    };
  }, []);
  return html`
    ${state.bad && html`<${Notice} kind="warn">${state.text}<//>`}
    <p class="pages">
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      <span class="quiet">${count(shown.total)} records since this view was opened; the newest are on top.</span>
    </p>
    ${shown.records.length
      ? html`<${Records} label=${`New records of ${topic}`} records=${shown.records} />`
      : !state.bad && html`<${Empty} title="Nothing has arrived yet.">Records appear here as producers send them.<//>`}
  `;
}
