// Open transactions, and which partitions they hold back: consumers of committed records wait there.

import { html } from "../vendor/preact.js";
import { count, duration, text } from "../format.js";
import { usePages } from "../paged.js";
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

const HELD_COLUMNS = [
  { name: "topic", label: "Topic", sort: (row) => row.topic, cell: (row) => html`<${Link} to=${to(["topics", row.topic])} value=${row.topic} />` },
  { name: "partition", label: "Partition", number: true, id: true, cell: (row) => count(row.partition) },
  { name: "stable", label: "Last stable offset", number: true, cell: (row) => count(row.last_stable_offset) },
  { name: "end", label: "End", number: true, cell: (row) => count(row.end_offset) },
  { name: "held", label: "Held back", number: true, sort: (row) => row.end_offset - row.last_stable_offset, cell: (row) => html`<b class="behind">${count(row.end_offset - row.last_stable_offset)}</b>` },
  { name: "by", label: "By", grow: true, cell: (row) => row.transactional_id === null
    ? html`producer ${count(row.producer_id)} <span class="quiet">(no transaction is known: it hangs)</span>`
    : html`<${Name} value=${row.transactional_id} />` },
];

export function Transactions({ segments, query }) {
  const pages = usePages("/transactions", "transactions", { segments, query, everyS: 3 });
  const held = pages.answer.data?.held ?? [];
  const none = !pages.rows.length && !held.length && pages.isFirst;
  return html`
    <div class="title"><h1 tabindex="-1">Transactions</h1>${pages.filterField("Filter transactions")}</div>
    <${Loaded} answer=${pages.answer} empty=${none && html`<${Empty} title=${pages.filter ? "No open transaction has this in its id." : "No transaction is open."}>
      ${!pages.filter && "Consumers that read committed records only wait for nobody."}<//>`}>${() => html`
      ${pages.rows.length > 0 && html`<${Table} label="Open transactions" columns=${COLUMNS} rows=${pages.rows} order=${{ by: "open", down: true }} rowKey=${(row) => text(row.id)} />`}
      ${held.length > 0 && html`
        <h2>Partitions that are held back</h2>
        <p class="quiet">Consumers with <code>read_committed</code> read up to the last stable offset.</p>
        <${Table} label="Partitions that are held back" columns=${HELD_COLUMNS} rows=${held} rowKey=${(row) => `${row.topic}/${row.partition}`} order=${{ by: "held", down: true }} />`}`}<//>
    ${pages.controls}
  `;
}
