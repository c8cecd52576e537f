// How long requests take, by API, and where the time goes: Kafka's five parts.

import { html } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { count, duration, rate, text } from "../format.js";
import { Empty, Loaded, Table } from "../parts.js";

export const PARTS = [
  ["queue", "waits for a handler"],
  ["local", "is worked on"],
  ["wait", "waits for an event, such as new records"],
  ["throttle", "is held back by a quota"],
  ["send", "waits to be sent"],
];

const COLUMNS = [
  { name: "api", label: "API", sort: (row) => text(row.api), cell: (row) => text(row.api) },
  { name: "rate", label: "Rate", number: true, sort: (row) => row.rate, cell: (row) => rate(row.rate) },
  { name: "count", label: "Count", number: true, sort: (row) => row.count, cell: (row) => count(row.count) },
  { name: "errors", label: "Errors", number: true, sort: (row) => row.errors, cell: (row) => html`<span class=${row.errors > 0 ? "bad-text" : ""}>${count(row.errors)}</span>` },
  { name: "p50", label: "Half", number: true, title: "Half of the requests took at most so long", sort: (row) => row.p50, cell: (row) => duration(row.p50) },
  { name: "p95", label: "95 %", number: true, sort: (row) => row.p95, cell: (row) => duration(row.p95) },
  { name: "p99", label: "99 %", number: true, sort: (row) => row.p99, cell: (row) => duration(row.p99) },
  { name: "parts", label: "Where the time goes", grow: true, cell: (row) => html`<${Parts} parts=${row.parts ?? {}} />` },
];

function Parts({ parts }) {
  const known = PARTS.map(([name]) => [name, parts[name] ?? 0]);
  const whole = known.reduce((sum, [, value]) => sum + value, 0);
  if (!(whole > 0)) return html`<span class="quiet">–</span>`;
  const words = known.filter(([, value]) => value > 0).map(([name, value]) => `${name} ${duration(value)}`).join(", ");
  return html`<span class="parts" role="img" aria-label=${words} title=${words}>
    ${known.map(([name, value]) => html`<span key=${name} class=${`part ${name}`} style=${{ flexGrow: value / whole }}></span>`)}
  </span>`;
}

export function Requests() {
  const answer = useGet("/requests");
  const rows = answer.data?.apis ?? [];
  return html`
    <h1 tabindex="-1">Requests</h1>
    <p class="legend">Means of the last minute: a request
      ${PARTS.map(([name, doc]) => html`<span key=${name} class="legend-part"><span class=${`swatch ${name}`}></span><b>${name}</b> ${doc}</span>`)}
    </p>
    <${Loaded} answer=${answer} empty=${!rows.length && html`<${Empty} title="No request has come yet." />`}>${() => html`
      <${Table} label="Requests by API" columns=${COLUMNS} rows=${rows} rowKey=${(row) => text(row.api)} order=${{ by: "rate", down: true }} />`}<//>
  `;
}
