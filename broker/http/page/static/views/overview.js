// One line of health, and four curves; of several nodes also which there are.

import { html } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { Chart, useHistory } from "../chart.js";
import { byteRate, bytes, count, rate, text } from "../format.js";
import { Badge, Figures, Loaded, Name, Notice, Table } from "../parts.js";

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
    <${Cluster} listeners=${overview.data?.listeners ?? []} />
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

/** Nothing of a broker alone, which is asked once. */
function Cluster({ listeners }) {
  const first = useGet("/cluster", {}, 0);
  return first.data?.nodes?.length > 1 && html`<${Nodes} listeners=${listeners} />`;
}

function Nodes({ listeners }) {
  const cluster = useGet("/cluster");
  const nodes = cluster.data?.nodes ?? [];
  const away = nodes.filter((node) => !node.alive).length;
  const own = cluster.data?.node_id;
  return html`
    <h2>Nodes</h2>
    ${away > 0 && html`<${Notice} kind="warn">${count(away)} of ${count(nodes.length)} nodes ${away > 1 ? "are" : "is"} away, and being started again.<//>`}
    <${Loaded} answer=${cluster}>${() => html`
      <p class="quiet">The figures on this page are those of node ${text(own)}. Topics and settings are those of all nodes.</p>
      <${Table} label="Nodes" rows=${nodes} rowKey=${(row) => row.node_id} columns=${[
        { name: "node", label: "Node", sort: (row) => row.node_id, cell: (row) => html`<${PageOf} node=${row} own=${own} listeners=${listeners} />` },
        { name: "state", label: "State", cell: (row) => html`<${Badge} kind=${row.alive ? "good" : "bad"}>${row.alive ? "alive" : "away"}<//>` },
        { name: "partitions", label: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
        nodes.some((row) => row.machine) && { name: "machine", label: "Machine", sort: (row) => row.machine, cell: (row) => html`<${Name} value=${row.machine ?? "–"} />` },
        nodes.some((row) => row.epoch) && { name: "epoch", label: "Epoch", title: "Rises each time that the node is taken over.", number: true, sort: (row) => row.epoch, cell: (row) => count(row.epoch) },
        nodes.some((row) => row.rack) && { name: "rack", label: "Rack", sort: (row) => row.rack, cell: (row) => html`<${Name} value=${row.rack ?? "–"} />` },
        { name: "addresses", label: "Addresses", grow: true, cell: (row) => Object.entries(row.endpoints ?? {}).map(([name, address]) =>
          html`<span key=${name} class="address"><span class="quiet">${text(name)}</span> <code>${text(address)}</code> </span>`) },
      ].filter(Boolean)} />`}<//>
  `;
}

/** The node's id, which leads to the page that it serves itself, if it serves one in the same way as this one. */
function PageOf({ node, own, listeners }) {
  if (node.node_id === own) return html`${node.node_id} <${Badge}>this page<//>`;
  const isSecure = location.protocol === "https:";
  const name = listeners.find(({ scheme }) => scheme === (isSecure ? "http+ssl" : "http"))?.name;
  const address = node.endpoints?.[name];
  return address ? html`<a href=${`${location.protocol}//${address}/${location.hash}`}>${node.node_id}</a>` : text(node.node_id);
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
