// Result partitions: who waits for whom. A reader without credit makes a backlog; enough of it blocks the writer.

import { html } from "../vendor/preact.js";
import { bytes, count, cut, text } from "../format.js";
import { usePages } from "../paged.js";
import { Badge, Bar, Empty, Figures, Loaded, Name, Table } from "../parts.js";
import { lacks } from "../services.js";

/** What a channel does: [word, kind]. */
export function pressure({ credit, backlog, finished, blocked, back_pressured: held }) {
  if (finished) return ["finished", ""];
  if (blocked) return ["at a barrier", "info"];
  if (held ?? (backlog > 0 && !(credit > 0))) return ["no credit", "bad"];
  return backlog > 0 ? ["moving", "warn"] : ["keeps up", "good"];
}

const backlogOf = (partition) => (partition.readers ?? []).reduce((sum, each) => sum + (each.backlog ?? 0), 0);
// Those that need a look come first.
const byNeed = (one, other) => Number(other.writer_blocked) - Number(one.writer_blocked) || backlogOf(other) - backlogOf(one);

export function Shuffle({ segments, query, overview }) {
  const missing = lacks(overview, "shuffle");
  const pages = usePages(missing ? null : "/shuffle", "partitions", { segments, query, everyS: 2 });
  const none = !pages.rows.length && pages.isFirst;
  return html`
    <div class="title"><h1 tabindex="-1">Shuffle</h1>${pages.filterField("Filter partitions")}</div>
    ${missing
      ? html`<${Empty} title="This broker has no shuffle listener.">Start it with <code>--listener shuffle://127.0.0.1:9093</code> to have one.<//>`
      : html`<${Loaded} answer=${pages.answer} empty=${none && html`<${Empty} title=${pages.filter ? "No partition has this in its name." : "There are no result partitions."}>
          ${!pages.filter && "One appears here when a task writes to it or a task waits for it."}<//>`}>${() => html`
          <${Sums} answer=${pages.answer.data} />
          ${[...pages.rows].sort(byNeed).map((each) => html`<${Partition} key=${text(each.id)} partition=${each} />`)}`}<//>`}
    ${pages.controls}
  `;
}

function Sums({ answer: { partitions, memory = {}, disk = {} } }) {
  const channels = partitions.flatMap((each) => each.readers ?? []);
  const starved = channels.filter((each) => pressure(each)[1] === "bad").length;
  const blocked = partitions.filter((each) => each.writer_blocked).length;
  return html`<${Figures} items=${[
    { label: "result partitions", value: count(partitions.length) },
    { label: "channels", value: count(channels.length) },
    { label: "channels without credit", value: count(starved), kind: starved ? "warn" : "" },
    { label: "blocked writers", value: count(blocked), kind: blocked ? "bad" : "" },
    { label: "memory", value: `${bytes(memory.used)} of ${bytes(memory.capacity)}`, kind: memory.used >= 0.9 * memory.capacity ? "warn" : "" },
    disk.used > 0 && { label: "spilled", value: `${bytes(disk.used)} of ${bytes(disk.capacity)}`, kind: "warn" },
  ]} />`;
}

/** What the writer waits for. A reader that takes nothing is the reason, also where the broker's memory is what it has filled. */
const waitsFor = ({ readers = [], writer_blocked_by: by }) =>
  by === "readers" || readers.some((each) => pressure(each)[1] === "bad") ? "waits for its readers" : by === "memory" ? "waits for memory" : "is blocked";

/** Without the attempt, which only Flink sets. */
const shortName = ({ name, id }) => text(name ?? id).replace(/@0+_0+_0_0$/, "");

function Partition({ partition }) {
  const readers = partition.readers ?? [];
  const most = Math.max(1, ...readers.map((each) => each.backlog ?? 0));
  const name = shortName(partition);
  return html`<section class="partition" aria-label=${`Result partition ${cut(name, 60)}`}>
    <div class="partition-head">
      <h2><code><${Name} value=${name} most=${80} /></code></h2>
      <${Badge}>${cut(partition.state, 40).toLowerCase()}<//>
      ${partition.writer_blocked
        ? html`<${Badge} kind="bad">writer ${waitsFor(partition)}<//>`
        : partition.writer && html`<${Badge} kind="good">writer free<//>`}
      ${partition.spilled > 0 && html`<${Badge} kind="warn">spilled ${bytes(partition.spilled)}<//>`}
      <span class="quiet">${count(partition.subpartitions)} subpartitions, ${count(partition.buffers)} buffers, ${bytes(partition.bytes)}${partition.owner ? `, ${cut(partition.owner, 60)}` : ""}</span>
    </div>
    ${readers.length === 0
      ? html`<p class="quiet">Nobody reads it now.</p>`
      : html`<${Table} label=${`Channels of ${cut(name, 60)}`} rows=${readers} most=${64} order=${{ by: "subpartition", down: false }} rowKey=${(row) => `${row.subpartition} ${row.peer}`} columns=${[
          { name: "subpartition", label: "Subpartition", number: true, id: true, sort: (row) => row.subpartition, cell: subpartitions },
          { name: "state", label: "Channel", cell: (row) => html`<${Badge} kind=${pressure(row)[1]}>${pressure(row)[0]}<//>` },
          { name: "credit", label: "Credit", number: true, sort: (row) => row.credit, cell: (row) => count(row.credit) },
          { name: "backlog", label: "Backlog", number: true, sort: (row) => row.backlog, cell: (row) => count(row.backlog) },
          { name: "bar", label: html`<span class="hidden">Share of the largest backlog</span>`, cell: (row) => html`<${Bar} value=${row.backlog ?? 0} of=${most} label=${`backlog ${count(row.backlog)}`} kind=${pressure(row)[1]} />` },
          { name: "sent", label: "Sent", number: true, sort: (row) => row.sent, cell: (row) => count(row.sent) },
          { name: "peer", label: "Reader", grow: true, cell: (row) => html`<code>${text(row.peer)}</code>` },
        ]} />`}
  </section>`;
}

const subpartitions = ({ subpartition, subpartitions: width }) =>
  width > 1 ? `${count(subpartition)}–${count(subpartition + width - 1)}` : count(subpartition);
