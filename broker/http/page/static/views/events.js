// The rare events of the broker's log, the newest first.

import { html } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { cut, text, time } from "../format.js";
import { Badge, Empty, Filter, Loaded, Table } from "../parts.js";
import { replace } from "../router.js";

const KINDS = { warning: "warn", warn: "warn", error: "bad", critical: "bad" };
const FIELDS_SHOWN = 20;

const COLUMNS = [
  { name: "time", label: "Time", number: true, cell: (row) => time(row.time_ms) },
  { name: "level", label: "Level", cell: (row) => html`<${Badge} kind=${KINDS[row.level] ?? ""}>${text(row.level)}<//>` },
  { name: "event", label: "Event", cell: (row) => html`<code>${text(row.event)}</code>` },
  { name: "fields", label: "Details", grow: true, cell: (row) => html`<span class="fields">
    ${Object.entries(row.fields ?? {}).slice(0, FIELDS_SHOWN).map(([name, value]) => html`<span key=${name}><span class="quiet">${cut(name, 60)}</span> ${cut(value, 300)} </span>`)}
  </span>` },
];

export function Events({ segments, query }) {
  const answer = useGet("/events", {}, 5);
  const filter = query.filter ?? "";
  const rows = answer.data ? newest(answer.data.events, filter.toLowerCase()) : [];
  return html`
    <div class="title">
      <h1 tabindex="-1">Events</h1>
      <${Filter} label="Filter events" value=${filter} onChange=${(typed) => replace(segments, { filter: typed })} />
    </div>
    <${Loaded} answer=${answer} empty=${!rows.length && html`<${Empty} title=${filter ? "No event has this." : "Nothing has happened."}>
      ${!filter && "Only rare events are kept here, such as starts, failures and refused logins."}<//>`}>${() => html`
      <${Table} label="Events" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.key} />`}<//>
  `;
}

function newest(events, words) {
  return events
    .map((event, index) => ({ ...event, key: `${event.time_ms}/${index}` }))
    .filter((event) => !words || `${event.level} ${event.event} ${JSON.stringify(event.fields)}`.toLowerCase().includes(words))
    .sort((one, other) => other.time_ms - one.time_ms);
}
