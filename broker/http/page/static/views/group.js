// One group: its lag over time and by partition, and who reads what.

import { html } from "../vendor/preact.js";
import { pathOf, useGet } from "../api.js";
import { Chart, useHistory } from "../chart.js";
import { ago, compact, count, duration, text } from "../format.js";
import { Badge, Bar, Empty, Figures, Link, Loaded, Name, Table } from "../parts.js";
import { to } from "../router.js";
import { State } from "./groups.js";

export function Group({ segments }) {
  const name = segments[1];
  const answer = useGet(pathOf("groups", name), {}, 3);
  const lag = `group:${name}:lag`;
  const lagInTime = `group:${name}:lag_s`;
  const history = useHistory([lag, lagInTime]);
  return html`
    <p class="path"><a href=${to(["groups"])}>Groups</a></p>
    <div class="title"><h1 tabindex="-1">${name}</h1>${history.spanField}</div>
    <${Loaded} answer=${answer}>${() => html`
      <${About} group=${answer.data} />
      <div class="charts">
        <${Chart} title="Lag over time" history=${history} format=${compact} series=${[{ name: lag, label: "lag" }]} />
        <${Chart} title="Lag in time" history=${history} format=${duration} series=${[{ name: lagInTime, label: "lag in time" }]} />
      </div>
      <${Partitions} group=${answer.data} />
      <${Members} members=${answer.data.members ?? []} />
    `}<//>
  `;
}

const About = ({ group }) => html`<${Figures} items=${[
  { label: "state", value: html`<${State} state=${group.state} />` },
  { label: "lag", value: count(group.lag), kind: group.lag > 0 ? "warn" : "" },
  { label: "lag in time", value: duration(group.lag_s) },
  { label: "members", value: count(group.members?.length) },
  { label: "type", value: text(group.type) },
  { label: "assignor", value: text(group.protocol) },
  { label: "generation", value: count(group.generation) },
  { label: "rebalances", value: count(group.rebalances) },
]} />`;

function Partitions({ group }) {
  const rows = group.partitions ?? [];
  const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
  const clients = new Map((group.members ?? []).map((member) => [member.member_id, member.client_id]));
  return html`
    <h2>Partitions</h2>
    ${rows.length === 0 && html`<${Empty} title="This group has committed nothing and reads nothing." />`}
    ${rows.length > 0 && html`<${Table} label="Partitions of the group" rows=${rows} order=${{ by: "lag", down: true }}
      rowKey=${(row) => `${row.topic}/${row.partition}`} columns=${[
        { name: "topic", label: "Topic", sort: (row) => row.topic, cell: (row) => html`<${Link} to=${to(["topics", row.topic])} value=${row.topic} />` },
        { name: "partition", label: "Partition", number: true, id: true, sort: (row) => row.partition, cell: (row) => count(row.partition) },
        { name: "bar", label: html`<span class="hidden">Share of the largest lag</span>`, cell: (row) => html`
          <${Bar} value=${row.lag ?? 0} of=${most} label=${`lag ${count(row.lag)}`} kind=${row.lag > 0 ? "warn" : ""} />` },
        { name: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: (row) => html`<b class=${row.lag > 0 ? "behind" : ""}>${count(row.lag)}</b>` },
        { name: "lag_s", label: "In time", number: true, sort: (row) => row.lag_s, cell: (row) => duration(row.lag_s) },
        { name: "committed", label: "Committed", number: true, sort: (row) => row.committed, cell: (row) => count(row.committed) },
        { name: "end", label: "End", number: true, sort: (row) => row.end_offset, cell: (row) => count(row.end_offset) },
        { name: "when", label: "When", number: true, sort: (row) => row.committed_ms, cell: (row) => ago(row.committed_ms) },
        { name: "member", label: "Read by", grow: true, cell: (row) => row.member_id
          ? html`<${Name} value=${clients.get(row.member_id) || row.member_id} most=${40} />`
          : html`<span class="quiet">nobody</span>` },
      ]} />`}
  `;
}

const Members = ({ members }) => html`
  <h2>Members</h2>
  ${members.length === 0 && html`<${Empty} title="Nobody is in this group now." />`}
  ${members.length > 0 && html`<${Table} label="Members" rows=${members} rowKey=${(row) => row.member_id} columns=${[
    { name: "client", label: "Client", cell: (row) => html`<${Name} value=${row.client_id} most=${60} />` },
    { name: "host", label: "Host", cell: (row) => html`<code>${text(row.host)}</code>` },
    { name: "assignment", label: "Assignment", grow: true, cell: (row) => html`<${Assignment} assignment=${row.assignment ?? []} />` },
    { name: "instance", label: "Instance", cell: (row) => html`<${Name} value=${row.instance_id} most=${40} />` },
    { name: "member", label: "Member", cell: (row) => html`<span class="quiet"><${Name} value=${row.member_id} most=${24} /></span>` },
  ]} />`}
`;

const Assignment = ({ assignment }) =>
  assignment.length
    ? assignment.map((each) => html`<span key=${each.topic}><${Name} value=${each.topic} most=${60} /> <${Badge}>${ranges(each.partitions ?? [])}<//> </span>`)
    : html`<span class="quiet">nothing</span>`;

/** 0–3, 7 */
export function ranges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const shown = found.slice(0, 50).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  return shown.join(", ") + (found.length > 50 ? ", …" : "") || "–";
}
