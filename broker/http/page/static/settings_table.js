// Settings of the broker or of a topic. Those that differ from their defaults are marked and come first.

import { html, useState } from "./vendor/preact.js";
import { text } from "./format.js";
import { Badge, Empty, Name, Table } from "./parts.js";

const told = (value) => (value === null || value === undefined ? null : typeof value === "object" ? JSON.stringify(value) : String(value));
export const isChanged = (setting) =>
  setting.source ? !/default/i.test(setting.source) : told(setting.value) !== told(setting.default);

export function SettingsTable({ label, settings, filter = "" }) {
  const changed = settings.filter(isChanged);
  const [all, setAll] = useState(changed.length === 0);
  const words = filter.toLowerCase();
  const wanted = (all || words ? settings : changed).filter(
    (each) => !words || `${each.name} ${each.doc ?? ""}`.toLowerCase().includes(words),
  );
  const rows = [...wanted].sort((one, other) => Number(isChanged(other)) - Number(isChanged(one)));
  return html`
    <p class="choice">
      <label><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Also those at their defaults</label>
      <span class="quiet">${changed.length} of ${settings.length} differ from their defaults.</span>
    </p>
    ${rows.length
      ? html`<${Table} label=${label} rows=${rows} most=${500} rowKey=${(row) => row.name} kind="stacked"
          rowClass=${(row) => (isChanged(row) ? "changed" : undefined)} columns=${COLUMNS} />`
      : html`<${Empty} title=${words ? "No setting has this in its name or description." : "All settings have their defaults."} />`}
  `;
}

const COLUMNS = [
  { name: "name", label: "Setting", cell: (row) => html`<code>${text(row.name)}</code>` },
  { name: "value", label: "Value", cell: (row) => html`<span class="value"><${Name} value=${row.value} most=${200} /></span>` },
  { name: "default", label: "Default", cell: (row) => html`<span class="quiet"><${Name} value=${row.default} most=${200} /></span>` },
  { name: "source", label: "From", cell: (row) => html`
    ${isChanged(row) ? html`<${Badge} kind="info">${text(row.source ?? "changed")}<//>` : html`<span class="quiet">${text(row.source ?? "default")}</span>`}
    ${row.live && html` <${Badge}>live<//>`}` },
  { name: "doc", label: "Description", grow: true, cell: (row) => row.doc && html`<span class="doc">${text(row.doc)}</span>` },
];
