// All groups, with how far they are behind.

import { html } from "../vendor/preact.js";
import { count, duration, text } from "../format.js";
import { usePages } from "../paged.js";
import { Badge, Empty, Link, Loaded, Table } from "../parts.js";
import { to } from "../router.js";

/** Kafka's states. */
export function State({ state }) {
  const name = text(state);
  const kind = { stable: "good", empty: "", dead: "bad" }[name.toLowerCase()] ?? "warn";
  return html`<${Badge} kind=${name === "–" ? "" : kind}>${name}<//>`;
}

const list = (value) => (Array.isArray(value) ? value.map(text).join(", ") : typeof value === "number" ? count(value) : text(value));

const COLUMNS = [
  { name: "group", label: "Group", grow: true, sort: (row) => row.group, cell: (row) => html`<${Link} to=${to(["groups", row.group])} value=${row.group} />` },
  { name: "state", label: "State", sort: (row) => text(row.state), cell: (row) => html`<${State} state=${row.state} />` },
  { name: "type", label: "Type", cell: (row) => text(row.type) },
  { name: "protocol", label: "Assignor", cell: (row) => text(row.protocol) },
  { name: "topics", label: "Topics", cell: (row) => html`<span class="name">${list(row.topics)}</span>` },
  { name: "members", label: "Members", number: true, sort: (row) => row.members, cell: (row) => count(row.members) },
  { name: "rebalances", label: "Rebalances", number: true, sort: (row) => row.rebalances, cell: (row) => count(row.rebalances) },
  { name: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: (row) => html`<b class=${row.lag > 0 ? "behind" : ""}>${count(row.lag)}</b>` },
  { name: "lag_s", label: "Lag in time", number: true, sort: (row) => row.lag_s, cell: (row) => duration(row.lag_s) },
];

export function Groups({ segments, query }) {
  const pages = usePages("/groups", "groups", { segments, query });
  const none = pages.rows.length === 0 && pages.isFirst;
  return html`
    <div class="title"><h1 tabindex="-1">Groups</h1>${pages.filterField("Filter groups")}</div>
    <${Loaded} answer=${pages.answer} empty=${none && html`<${Empty} title=${pages.filter ? "No group has this in its name." : "There are no groups."}>
      ${!pages.filter && html`A group appears here when a consumer with a <code>group.id</code> joins or commits.`}<//>`}>${() => html`
      <${Table} label="Groups" columns=${COLUMNS} rows=${pages.rows} rowKey=${(row) => row.group} order=${{ by: "lag", down: true }} />`}<//>
    ${pages.controls}
  `;
}
