// Open transactions, and which partitions they hold back: consumers of committed records wait there.

import { html } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { count, duration, text } from "../format.js";
import { Badge, Empty, Link, Loaded, Name, Table } from "../parts.js";
import { to } from "../router.js";

const HELD_SHOWN = 5;
const LONG_S = 60;

const COLUMNS = [
  { name: "id", label: "Transactional id", sort: (row) => text(row.id), cell: (row) => html`<${Name} value=${row.id} />` },
  { name: "state", label: "State", cell: (row) => html`<${Badge}>${text(row.state)}<//>` },
  { name: "open", label: "Open for", number: true, sort: (row) => row.open_s, cell: (row) => html`<span class=${row.open_s > LONG_S ? "behind" : ""}>${duration(row.open_s)}</span>` },
  { name: "partitions", label: "Partitions", number: true, cell: (row) => count(Array.isArray(row.partitions) ? row.partitions.length : row.partitions) },
  { name: "holds", label: "Holds the last stable offset of", grow: true, cell: (row) => html`<${Held} held=${row.holds_last_stable_offset ?? []} />` },
  { name: "producer", label: "Producer", number: true, cell: (row) => count(row.producer_id) },
  { name: "epoch", label: "Epoch", number: true, cell: (row) => count(row.epoch) },
];

const Held = ({ held }) => html`
  ${held.slice(0, HELD_SHOWN).map((each) => html`<span key=${`${each.topic}/${each.partition}`}>
    <${Link} to=${to(["topics", text(each.topic)])} value=${each.topic} most=${40} /> <span class="quiet">${count(each.partition)} at ${count(each.offset)}</span>  </span>`)}
  ${held.length > HELD_SHOWN && html`<span class="quiet">and ${held.length - HELD_SHOWN} more</span>`}
  ${held.length === 0 && html`<span class="quiet">nothing</span>`}
`;

export function Transactions() {
  const answer = useGet("/transactions", {}, 3);
  const rows = answer.data?.transactions ?? [];
  return html`
    <h1 tabindex="-1">Transactions</h1>
    <${Loaded} answer=${answer} empty=${!rows.length && html`<${Empty} title="No transaction is open.">
      Consumers that read committed records only wait for nobody.<//>`}>${() => html`
      <${Table} label="Open transactions" columns=${COLUMNS} rows=${rows} order=${{ by: "open", down: true }}
        rowKey=${(row) => `${row.id}/${row.producer_id}`} />`}<//>
  `;
}
