// One topic: its partitions, who reads it and how far behind, and its settings.

import { html } from "../vendor/preact.js";
import { pathOf, useGet } from "../api.js";
import { Chart, useHistory } from "../chart.js";
import { bytes, byteRate, count, duration, rate, text } from "../format.js";
import { Badge, Empty, Figures, Link, Loaded, Notice, Table } from "../parts.js";
import { to } from "../router.js";
import { SettingsTable } from "../settings_table.js";

export function Topic({ segments }) {
  const name = segments[1];
  const answer = useGet(pathOf("topics", name));
  const series = (what) => `topic:${name}:${what}`;
  const history = useHistory(["messages_in", "bytes_in", "bytes_out"].map(series));
  return html`
    <p class="path"><a href=${to(["topics"])}>Topics</a></p>
    <div class="title">
      <h1 tabindex="-1">${name}</h1>
      ${history.spanField}
      <a class="button" href=${to(["topics", name, "messages"])}>Messages</a>
      <a class="button" href=${to(["topics", name, "messages"], { from: "tail" })}>Live tail</a>
    </div>
    <${Loaded} answer=${answer}>${() => html`
      <${About} topic=${answer.data} />
      <div class="charts">
        <${Chart} title="Messages in" history=${history} format=${rate} series=${[{ name: series("messages_in"), label: "in" }]} />
        <${Chart} title="Bytes" history=${history} format=${byteRate}
          series=${[{ name: series("bytes_in"), label: "in" }, { name: series("bytes_out"), label: "out" }]} />
      </div>
      <${Partitions} topic=${answer.data} name=${name} />
      <${Readers} topic=${answer.data} />
      <h2>Settings</h2>
      <${SettingsTable} label="Settings of the topic" settings=${answer.data.settings ?? []} />
    `}<//>
  `;
}

const About = ({ topic }) => html`
  ${topic.offline > 0 && html`<${Notice} kind="bad">
    ${count(topic.offline)} of ${count(topic.partitions?.length)} partitions are offline. The table says why.
  <//>`}
  <${Figures} items=${[
    { label: "partitions", value: count(topic.partition_count) },
    topic.partitions_here < topic.partition_count && { label: "of these here", value: count(topic.partitions_here), title: "The figures are those of the partitions that this node has." },
    { label: "messages", value: count(topic.messages) },
    { label: "size", value: bytes(topic.log_bytes) },
    { label: "messages in", value: rate(topic.messages_in_rate) },
    { label: "bytes in", value: byteRate(topic.bytes_in_rate) },
    { label: "bytes out", value: byteRate(topic.bytes_out_rate) },
    topic.internal && { label: "kind", value: "internal" },
  ]} />
`;

const Partitions = ({ topic, name }) => html`
  <h2>Partitions</h2>
  <${Table} label="Partitions" rows=${topic.partitions ?? []} rowKey=${(row) => row.partition} columns=${[
    { name: "partition", label: "Partition", number: true, id: true, sort: (row) => row.partition, cell: (row) => html`
      <a href=${to(["topics", name, "messages"], { partition: row.partition })}>${count(row.partition)}</a>` },
    { name: "start", label: "First offset", number: true, sort: (row) => row.start_offset, cell: (row) => count(row.start_offset) },
    { name: "end", label: "End", number: true, sort: (row) => row.end_offset, cell: (row) => count(row.end_offset) },
    { name: "stable", label: "Last stable", number: true, cell: (row) => html`
      ${row.last_stable_offset < row.end_offset && html`<${Badge} kind="warn">held back by ${count(row.end_offset - row.last_stable_offset)}<//> `}
      ${count(row.last_stable_offset)}` },
    { name: "size", label: "Size", number: true, sort: (row) => row.log_bytes, cell: (row) => bytes(row.log_bytes) },
    { name: "segments", label: "Segments", number: true, sort: (row) => row.segments, cell: (row) => count(row.segments) },
    { name: "state", label: "State", grow: true, cell: (row) => row.offline_reason
      ? html`<${Badge} kind="bad">offline<//> ${text(row.offline_reason)}`
      : html`<${Badge} kind="good">online<//>` },
  ]} />
`;

const Readers = ({ topic }) => html`
  <h2>Groups</h2>
  ${topic.groups?.length
    ? html`<${Table} label="Groups of the topic" rows=${topic.groups} rowKey=${(row) => row.group} order=${{ by: "lag", down: true }} columns=${[
        { name: "group", label: "Group", grow: true, sort: (row) => row.group, cell: (row) => html`<${Link} to=${to(["groups", row.group])} value=${row.group} />` },
        { name: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
        { name: "lag_s", label: "Lag in time", number: true, sort: (row) => row.lag_s, cell: (row) => duration(row.lag_s) },
      ]} />`
    : html`<${Empty} title="No group reads this topic." />`}
  ${topic.subscriptions?.length > 0 && html`
    <h2>Subscriptions</h2>
    <${Table} label="Subscriptions of the topic" rows=${topic.subscriptions} rowKey=${(row) => row.name} order=${{ by: "backlog", down: true }} columns=${[
      { name: "name", label: "Subscription", grow: true, sort: (row) => row.name, cell: (row) => text(row.name) },
      { name: "type", label: "Type", cell: (row) => html`<${Badge}>${text(row.type)}<//>` },
      { name: "backlog", label: "Backlog", number: true, sort: (row) => row.backlog, cell: (row) => count(row.backlog) },
      { name: "consumers", label: "Consumers", number: true, cell: (row) => count(row.consumers) },
    ]} />`}
`;
