// Subscriptions of Pulsar clients: their backlog, and what their consumers may still take.

import { html } from "../vendor/preact.js";
import { count, text } from "../format.js";
import { usePages } from "../paged.js";
import { Badge, Empty, Loaded, Name, Table } from "../parts.js";
import { lacks } from "../services.js";

const consumers = (row) => (Array.isArray(row.consumers) ? row.consumers.length : row.consumers);

const COLUMNS = [
  { name: "name", label: "Subscription", sort: (row) => row.name, cell: (row) => html`<${Name} value=${row.name} />` },
  { name: "topic", label: "Topic", grow: true, sort: (row) => row.topic, cell: (row) => html`<${Name} value=${row.topic} most=${120} />` },
  { name: "type", label: "Type", cell: (row) => html`<${Badge}>${text(row.type)}<//>` },
  { name: "consumers", label: "Consumers", number: true, sort: consumers, cell: (row) => count(consumers(row)) },
  { name: "backlog", label: "Backlog", number: true, sort: (row) => row.backlog, cell: (row) => html`<b class=${row.backlog > 0 ? "behind" : ""}>${count(row.backlog)}</b>` },
  { name: "unacknowledged", label: "Unacknowledged", number: true, sort: (row) => row.unacknowledged, cell: (row) => count(row.unacknowledged) },
  { name: "permits", label: "Permits", number: true, sort: (row) => row.permits, cell: (row) => count(row.permits),
    title: "How many messages the consumers are ready to receive" },
  { name: "state", label: "Waits for", cell: (row) => waits(row) },
];

/** Why a backlog does not shrink, where that can be seen. */
function waits(row) {
  if (row.in_use === false) return html`<span class="quiet">not in use</span>`;
  if (!(row.backlog > 0)) return null;
  if (!consumers(row)) return html`<${Badge} kind="warn">a consumer<//>`;
  return row.permits > 0 ? null : html`<${Badge} kind="warn">permits<//>`;
}

export function Subscriptions({ segments, query, overview }) {
  const missing = lacks(overview, "pulsar");
  const pages = usePages(missing ? null : "/subscriptions", "subscriptions", { segments, query });
  const none = !pages.rows.length && pages.isFirst;
  return html`
    <div class="title"><h1 tabindex="-1">Subscriptions</h1>${pages.filterField("Filter subscriptions")}</div>
    ${missing
      ? html`<${Empty} title="This broker has no Pulsar listener.">Start it with <code>--listener pulsar://127.0.0.1:6650</code> to have one.<//>`
      : html`<${Loaded} answer=${pages.answer} empty=${none && html`<${Empty} title=${pages.filter ? "No subscription has this in its name." : "There are no subscriptions."}>
          ${!pages.filter && "One appears here when a Pulsar consumer subscribes."}<//>`}>${() => html`
          <${Table} label="Subscriptions" columns=${COLUMNS} rows=${pages.rows} rowKey=${(row) => `${row.topic}/${row.name}`} order=${{ by: "backlog", down: true }} />`}<//>`}
    ${pages.controls}
  `;
}
