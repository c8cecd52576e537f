// All topics, with their rates and sizes, and how far their groups are behind.

import { html } from "../vendor/preact.js";
import { bytes, byteRate, count, rate } from "../format.js";
import { usePages } from "../paged.js";
import { Badge, Empty, Link, Loaded, Table } from "../parts.js";
import { to } from "../router.js";

const GROUPS_SHOWN = 3;

const COLUMNS = [
  { name: "name", label: "Topic", grow: true, sort: (row) => row.name, cell: (row) => html`
    <${Link} to=${to(["topics", row.name])} value=${row.name} />
    ${row.internal && html` <${Badge}>internal<//>`}
    ${row.offline > 0 && html` <${Badge} kind="bad">${count(row.offline)} offline<//>`}` },
  { name: "lag", label: "Groups and their lag", sort: (row) => largestLag(row), cell: (row) => html`<${Lags} groups=${row.groups} />` },
  { name: "partitions", label: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
  { name: "messages_in", label: "Messages in", number: true, sort: (row) => row.messages_in_rate, cell: (row) => rate(row.messages_in_rate) },
  { name: "bytes_in", label: "In", number: true, sort: (row) => row.bytes_in_rate, cell: (row) => byteRate(row.bytes_in_rate) },
  { name: "bytes_out", label: "Out", number: true, sort: (row) => row.bytes_out_rate, cell: (row) => byteRate(row.bytes_out_rate) },
  { name: "messages", label: "Messages", number: true, sort: (row) => row.messages, cell: (row) => count(row.messages) },
  { name: "log_bytes", label: "Size", number: true, sort: (row) => row.log_bytes, cell: (row) => bytes(row.log_bytes) },
];

const largestLag = (row) => (row.groups?.length ? Math.max(...row.groups.map((each) => each.lag ?? 0)) : null);

function Lags({ groups = [] }) {
  const sorted = [...groups].sort((one, other) => (other.lag ?? 0) - (one.lag ?? 0));
  return html`<span class="lags">
    ${sorted.slice(0, GROUPS_SHOWN).map(
      (each) => html`<a key=${each.group} class=${`lag ${each.lag > 0 ? "behind" : ""}`} href=${to(["groups", each.group])}>
        <span class="lag-group" title=${each.group}>${each.group}</span> <b>${count(each.lag)}</b>
      </a>`,
    )}
    ${sorted.length > GROUPS_SHOWN && html`<span class="quiet">and ${sorted.length - GROUPS_SHOWN} more</span>`}
  </span>`;
}

export function Topics({ segments, query }) {
  const pages = usePages("/topics", "topics", { segments, query });
  const none = pages.rows.length === 0 && pages.isFirst;
  return html`
    <div class="title"><h1 tabindex="-1">Topics</h1>${pages.filterField("Filter topics")}</div>
    <${Loaded} answer=${pages.answer} empty=${none && noTopics(pages.filter)}>${() => html`
      <${Table} label="Topics" columns=${COLUMNS} rows=${pages.rows} rowKey=${(row) => row.name} />`}<//>
    ${pages.controls}
  `;
}

const noTopics = (filter) =>
  filter
    ? html`<${Empty} title="No topic has this in its name." />`
    : html`<${Empty} title="There are no topics.">
        Create one with <code>broker topics create NAME</code>, or let a producer create it.
      <//>`;
