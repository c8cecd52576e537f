// Result partitions: who waits for whom. A reader without credit makes a backlog; enough of it blocks the writer.

import { html, useState } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { bytes, count, cut, duration, text } from "../format.js";
import { Badge, Bar, Empty, Figures, Filter, Loaded, Name, Table } from "../parts.js";
import { replace } from "../router.js";

const SHOWN = 20;

/** What a channel does: [word, kind]. */
export function pressure({ credit, backlog }) {
  if (backlog > 0 && !(credit > 0)) return ["no credit", "bad"];
  if (backlog > 0) return ["moving", "warn"];
  return ["keeps up", "good"];
}

const isBlocked = ({ writer_blocked: blocked }) => blocked === true || blocked > 0;
const blockedFor = ({ writer_blocked: blocked }) => (typeof blocked === "number" && blocked !== 1 ? ` for ${duration(blocked)}` : "");
const backlogOf = (partition) => (partition.readers ?? []).reduce((sum, each) => sum + (each.backlog ?? 0), 0);

export function Shuffle({ segments, query }) {
  const answer = useGet("/shuffle", {}, 2);
  const [shown, setShown] = useState(SHOWN);
  const filter = query.filter ?? "";
  const all = answer.data?.partitions ?? [];
  const found = all
    .filter((each) => !filter || text(each.id).toLowerCase().includes(filter.toLowerCase()))
    .sort((one, other) => Number(isBlocked(other)) - Number(isBlocked(one)) || backlogOf(other) - backlogOf(one));
  return html`
    <div class="title">
      <h1 tabindex="-1">Shuffle</h1>
      <${Filter} label="Filter partitions" value=${filter} onChange=${(typed) => replace(segments, { filter: typed })} />
    </div>
    ${answer.error?.status === 404 && !answer.data
      ? html`<${Empty} title="This broker has no shuffle listener.">Add one with <code>--set listeners=…,shuffle://127.0.0.1:9093</code>.<//>`
      : html`<${Loaded} answer=${answer} empty=${!found.length && html`<${Empty} title=${filter ? "No partition has this in its name." : "There are no result partitions."}>
          ${!filter && "One appears here when a task writes to it or a task waits for it."}<//>`}>${() => html`
          <${Sums} partitions=${all} />
          ${found.slice(0, shown).map((each) => html`<${Partition} key=${text(each.id)} partition=${each} />`)}
          ${found.length > shown && html`<p class="more">${shown} of ${found.length} partitions. <button type="button" onClick=${() => setShown(shown + 50)}>Show more</button></p>`}`}<//>`}
  `;
}

function Sums({ partitions }) {
  const channels = partitions.flatMap((each) => each.readers ?? []);
  const starved = channels.filter((each) => pressure(each)[1] === "bad").length;
  const blocked = partitions.filter(isBlocked).length;
  return html`<${Figures} items=${[
    { label: "result partitions", value: count(partitions.length) },
    { label: "channels", value: count(channels.length) },
    { label: "channels without credit", value: count(starved), kind: starved ? "warn" : "" },
    { label: "blocked writers", value: count(blocked), kind: blocked ? "bad" : "" },
    { label: "in memory", value: bytes(partitions.reduce((sum, each) => sum + (each.bytes ?? 0), 0)) },
    { label: "buffers", value: count(partitions.reduce((sum, each) => sum + (each.buffers ?? 0), 0)) },
  ]} />`;
}

function Partition({ partition }) {
  const readers = partition.readers ?? [];
  const most = Math.max(1, ...readers.map((each) => each.backlog ?? 0));
  return html`<section class="partition" aria-label=${`Result partition ${cut(partition.id, 60)}`}>
    <div class="partition-head">
      <h2><code><${Name} value=${partition.id} most=${80} /></code></h2>
      <${Badge}>${text(partition.state)}<//>
      ${isBlocked(partition) ? html`<${Badge} kind="bad">writer blocked${blockedFor(partition)}<//>` : html`<${Badge} kind="good">writer free<//>`}
      ${(partition.spilled === true || partition.spilled > 0) && html`<${Badge} kind="warn">spilled${typeof partition.spilled === "number" ? ` ${bytes(partition.spilled)}` : ""}<//>`}
      <span class="quiet">${count(partition.subpartitions)} subpartitions, ${count(partition.buffers)} buffers, ${bytes(partition.bytes)}</span>
    </div>
    ${readers.length === 0
      ? html`<p class="quiet">Nobody reads it yet.</p>`
      : html`<${Table} label=${`Channels of ${cut(partition.id, 60)}`} rows=${readers} most=${64} rowKey=${(row) => `${row.subpartition} ${row.peer}`} columns=${[
          { name: "subpartition", label: "Subpartition", number: true, sort: (row) => row.subpartition, cell: (row) => count(row.subpartition) },
          { name: "state", label: "Channel", cell: (row) => html`<${Badge} kind=${pressure(row)[1]}>${pressure(row)[0]}<//>` },
          { name: "credit", label: "Credit", number: true, sort: (row) => row.credit, cell: (row) => count(row.credit) },
          { name: "backlog", label: "Backlog", number: true, sort: (row) => row.backlog, cell: (row) => count(row.backlog) },
          { name: "bar", label: html`<span class="hidden">Share of the largest backlog</span>`, cell: (row) => html`<${Bar} value=${row.backlog ?? 0} of=${most} label=${`backlog ${count(row.backlog)}`} kind=${pressure(row)[1]} />` },
          { name: "sent", label: "Sent", number: true, sort: (row) => row.sent, cell: (row) => count(row.sent) },
          { name: "peer", label: "Reader", grow: true, cell: (row) => html`<code>${text(row.peer)}</code>` },
        ]} />`}
  </section>`;
}
