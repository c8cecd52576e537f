// One line of health, and four curves.

import { html } from "../vendor/preact.js";
import { Chart, useHistory } from "../chart.js";
import { byteRate, bytes, count, rate, text } from "../format.js";
import { Badge, Figures, Loaded, Notice, Table } from "../parts.js";

const SERIES = ["messages_in", "bytes_in", "bytes_out", "requests", "errors", "connections"];

export function Overview({ overview }) {
  const history = useHistory(SERIES);
  const now = overview.data && { ...overview.data.rates, connections: overview.data.connections };
  return html`
    <div class="title"><h1 tabindex="-1">Overview</h1>${history.spanField}</div>
    <${Loaded} answer=${overview}>${() => html`<${Now} now=${overview.data} />`}<//>
    <div class="charts">
      <${Chart} title="Messages in" history=${history} now=${now} format=${rate} series=${[{ name: "messages_in", label: "in" }]} />
      <${Chart} title="Bytes" history=${history} now=${now} format=${byteRate}
        series=${[{ name: "bytes_in", label: "in" }, { name: "bytes_out", label: "out" }]} />
      <${Chart} title="Requests" history=${history} now=${now} format=${rate}
        series=${[{ name: "requests", label: "all" }, { name: "errors", label: "errors", color: "bad" }]} />
      <${Chart} title="Connections" history=${history} now=${now} format=${count} series=${[{ name: "connections", label: "open" }]} />
    </div>
    ${overview.data && html`<${Listeners} listeners=${overview.data.listeners ?? []} />`}
  `;
}

function Now({ now }) {
  const well = now.health?.status === "ok";
  const rates = now.rates ?? {};
  return html`
    <p class=${`verdict ${well ? "good" : "warn"}`}>
      <span class=${`dot ${well ? "good" : "warn"}`}></span>
      ${well ? "The broker is healthy." : "The broker needs attention."}
    </p>
    ${(now.health?.reasons ?? []).map((reason) => html`<${Notice} key=${text(reason)} kind="warn">${text(reason)}<//>`)}
    <${Figures} items=${[
      { label: "messages in", value: rate(rates.messages_in) },
      { label: "bytes in", value: byteRate(rates.bytes_in) },
      { label: "bytes out", value: byteRate(rates.bytes_out) },
      { label: "requests", value: rate(rates.requests) },
      { label: "errors", value: rate(rates.errors), kind: rates.errors > 0 ? "warn" : "" },
      { label: "topics", value: count(now.topics) },
      { label: "partitions", value: count(now.partitions) },
      now.offline_partitions > 0 && { label: "offline", value: count(now.offline_partitions), kind: "bad" },
      { label: "groups", value: count(now.groups) },
      { label: "connections", value: count(now.connections) },
      { label: "open transactions", value: count(now.transactions_open) },
      { label: "log", value: bytes(now.log_bytes) },
      { label: "free", value: bytes(now.free_bytes), kind: now.full_partitions > 0 ? "bad" : "" },
    ]} />
  `;
}

const Listeners = ({ listeners }) => html`
  <h2>Listeners</h2>
  <${Table} label="Listeners" rows=${listeners} rowKey=${(row) => row.name} columns=${[
    { name: "name", label: "Listener", cell: (row) => text(row.name) },
    { name: "scheme", label: "Protocol", cell: (row) => html`<${Badge}>${text(row.scheme)}<//>` },
    { name: "address", label: "Address", grow: true, cell: (row) => html`<code>${text(row.address)}</code>` },
    { name: "connections", label: "Connections", number: true, cell: (row) => count(row.connections) },
  ]} />
`;
