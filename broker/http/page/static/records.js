// Records as a table. Keys, values and headers are whatever a producer has sent: they are shown as text, and never in full on a
// line.

import { html, useState } from "./vendor/preact.js";
import { bytes, count, cut, text, time } from "./format.js";
import { Json } from "./json.js";
import { Badge, Notice } from "./parts.js";

const LINE_MAX = 160;
const KEY_MAX = 48;
const DUMP_MAX = 1024;
const HEADERS_SHOWN = 100;

/** Its partition and offset: no other record of the topic has them. */
const idOf = (record) => `${record.partition}/${record.offset}`;

export function Records({ label, records }) {
  const [open, setOpen] = useState(new Set());
  const toggle = (id) =>
    setOpen((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  return html`<div class="table records" role="region" aria-label=${label} tabindex="0">
    <table>
      <thead>
        <tr>
          <th scope="col" class="number">Offset</th>
          <th scope="col" class="number">Partition</th>
          <th scope="col">Time</th>
          <th scope="col">Key</th>
          <th scope="col" class="grow">Value</th>
          <th scope="col" class="number">Size</th>
        </tr>
      </thead>
      <tbody>
        ${records.map((record) => {
          const id = idOf(record);
          const shown = open.has(id);
          return [
            html`<tr key=${id} class=${shown ? "record open" : "record"} onClick=${(event) => event.target.closest("button") || hasSelection() || toggle(id)}>
              <td class="number"><button type="button" class="sort" aria-expanded=${shown} onClick=${() => toggle(id)}>
                <span class="twist" aria-hidden="true">${shown ? "▾" : "▸"}</span><span class="hidden">Record </span>${count(record.offset)}</button></td>
              <td class="number">${count(record.partition)}</td>
              <td class="number">${time(record.timestamp)}</td>
              <td class="line key-line"><${Line} part=${record.key} most=${KEY_MAX} /></td>
              <td class="line"><${Marks} record=${record} />${isPlain(record) && html`<${Line} part=${record.value} most=${LINE_MAX} />`}</td>
              <td class="number">${bytes(record.size)}</td>
            </tr>`,
            shown && html`<tr key=${`${id} open`} class="details"><td colspan="6"><${Details} record=${record} /></td></tr>`,
          ];
        })}
      </tbody>
    </table>
  </div>`;
}

const hasSelection = () => String(getSelection()).length > 0;

/** A record that a producer has sent, and that can be read. */
const isPlain = (record) => !record.marker && !record.unreadable;

const TRANSACTIONS = { open: "warn", aborted: "bad", committed: "info" };

/** What is special about a record. */
const Marks = ({ record }) => html`
  ${record.unreadable && html`<${Badge} kind="bad">unreadable<//> ${cut(record.unreadable, LINE_MAX)}`}
  ${record.marker && html`<${Badge}>${cut(record.marker, 20)} marker<//> <span class="quiet">of a transaction</span>`}
  ${isPlain(record) && TRANSACTIONS[record.transaction] && record.transaction !== "committed" && html`<${Badge} kind=${TRANSACTIONS[record.transaction]}>${record.transaction}<//> `}
`;

/** On one line, in part. */
function Line({ part, most }) {
  if (part === null || part === undefined) return html`<span class="quiet">null</span>`;
  if (part.base64 !== undefined && part.base64 !== null) {
    return html`<span class="quiet">binary</span> <code>${cut(hex(decoded(part.base64, 32)), 60)}</code>`;
  }
  const line = String(part.text ?? "").slice(0, most + 1).replace(/\s+/g, " ");
  return line ? html`<code>${cut(line, most)}</code>` : html`<span class="quiet">empty</span>`;
}

function Details({ record }) {
  const headers = record.headers ?? [];
  return html`<div class="record-details">
    <dl class="facts">
      <div><dt>Partition</dt><dd>${count(record.partition)}</dd></div>
      <div><dt>Offset</dt><dd>${count(record.offset)}</dd></div>
      <div><dt>Timestamp</dt><dd>${time(record.timestamp)} <span class="quiet">${text(record.timestamp_type)}, ${String(record.timestamp)}</span></dd></div>
      <div><dt>Compression</dt><dd>${text(record.compression)}</dd></div>
      ${record.transaction && html`<div><dt>Transaction</dt><dd><${Badge} kind=${TRANSACTIONS[record.transaction]}>${cut(record.transaction, 40)}<//></dd></div>`}
      ${record.pulsar && html`<div><dt>From</dt><dd><${Badge}>Pulsar<//></dd></div>`}
    </dl>
    ${headers.length > 0 && html`<h3>Headers</h3><dl class="headers">
      ${headers.slice(0, HEADERS_SHOWN).map((each, index) => html`<div key=${index}><dt>${cut(each.key, 200)}</dt><dd><${Line} part=${each.value} most=${1000} /></dd></div>`)}
    </dl>${headers.length > HEADERS_SHOWN && html`<p class="quiet">and ${headers.length - HEADERS_SHOWN} more</p>`}`}
    ${record.unreadable && html`<${Notice} kind="bad">${record.unreadable}<//>`}
    <h3>Key</h3><${Whole} part=${record.key} />
    <h3>Value</h3><${Whole} part=${record.value} />
  </div>`;
}

function Whole({ part }) {
  if (part === null || part === undefined) return html`<p class="quiet">null</p>`;
  const rest = part.truncated && html`<p class="quiet">Only the beginning is shown.</p>`;
  if (part.base64 !== undefined && part.base64 !== null) return html`<pre class="plain" tabindex="0">${dump(decoded(part.base64, DUMP_MAX))}</pre>${rest}`;
  const words = String(part.text ?? "");
  if (!words) return html`<p class="quiet">empty</p>`;
  return html`${part.json ? html`<${Json} text=${words} />` : html`<pre class="plain" tabindex="0">${words}</pre>`}${rest}`;
}

// -- bytes ----------------------------------------------------------------------------------------------------------------

function decoded(base64, most) {
  try {
    return Uint8Array.from(atob(String(base64).slice(0, Math.ceil(most / 3) * 4)), (letter) => letter.charCodeAt(0)).slice(0, most);
  } catch {
    return new Uint8Array();
  }
}

const hex = (data) => [...data].map((each) => each.toString(16).padStart(2, "0")).join(" ");

/** 16 bytes a line: where, in hex, and the letters of ASCII. */
function dump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = data.slice(at, at + 16);
    const letters = [...part].map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex(part).padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
