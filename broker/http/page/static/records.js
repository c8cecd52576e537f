// Records as a table. Keys, values and headers are whatever a producer has sent: they are shown as text, and never in full on a
// line.

import { html, useState } from "./vendor/preact.js";
import { bytes, count, cut, text, time } from "./format.js";
import { Json } from "./json.js";
import { Badge } from "./parts.js";

const LINE_MAX = 160;
const KEY_MAX = 48;
const DUMP_MAX = 1024;
const HEADERS_SHOWN = 100;

/** Its partition and offset: no other record of the topic has them. */
export const idOf = (record) => `${record.partition}/${record.offset}`;

export function Records({ label, records }) {
  const [open, setOpen] = useState(new Set());
  const toggle = (id) => {
    const next = new Set(open);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
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
              <td class="number"><button type="button" class="sort" aria-expanded=${shown} aria-label=${`Record ${id}`} onClick=${() => toggle(id)}>
                <span class="twist" aria-hidden="true">${shown ? "▾" : "▸"}</span>${count(record.offset)}</button></td>
              <td class="number">${count(record.partition)}</td>
              <td class="number">${time(record.timestamp)}</td>
              <td class="line key-line"><${Line} part=${record.key} most=${KEY_MAX} /></td>
              <td class="line"><${Line} part=${record.value} most=${LINE_MAX} /></td>
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
  const headers = headersOf(record.headers);
  return html`<div class="record-details">
    <dl class="facts">
      <div><dt>Partition</dt><dd>${count(record.partition)}</dd></div>
      <div><dt>Offset</dt><dd>${count(record.offset)}</dd></div>
      <div><dt>Timestamp</dt><dd>${time(record.timestamp)} <span class="quiet">${text(record.timestamp_type)}, ${String(record.timestamp)}</span></dd></div>
      <div><dt>Compression</dt><dd>${text(record.compression)}</dd></div>
      ${record.transactional && html`<div><dt>Transaction</dt><dd><${Badge} kind="info">transactional<//></dd></div>`}
    </dl>
    ${headers.length > 0 && html`<h3>Headers</h3><dl class="headers">
      ${headers.slice(0, HEADERS_SHOWN).map(([name, value], index) => html`<div key=${index}><dt>${cut(name, 200)}</dt><dd><${Line} part=${value} most=${1000} /></dd></div>`)}
    </dl>${headers.length > HEADERS_SHOWN && html`<p class="quiet">and ${headers.length - HEADERS_SHOWN} more</p>`}`}
    <h3>Key</h3><${Whole} part=${record.key} />
    <h3>Value</h3><${Whole} part=${record.value} />
  </div>`;
}

/** [name, part] of headers, which are a list of pairs, of objects with `key` and `value`, or one object. */
function headersOf(headers) {
  if (!headers) return [];
  const list = Array.isArray(headers) ? headers.map((each) => (Array.isArray(each) ? each : [each.key ?? each.name, each.value])) : Object.entries(headers);
  return list.map(([name, value]) => [name, typeof value === "string" ? { text: value } : value]);
}

function Whole({ part }) {
  if (part === null || part === undefined) return html`<p class="quiet">null</p>`;
  const rest = part.truncated && html`<p class="quiet">Only the beginning is shown.</p>`;
  if (part.base64 !== undefined && part.base64 !== null) return html`<pre class="plain" tabindex="0">${dump(decoded(part.base64, DUMP_MAX))}</pre>${rest}`;
  const words = String(part.text ?? "");
  if (!words) return html`<p class="quiet">empty</p>`;
  return html`${isJson(part, words) ? html`<${Json} text=${words} />` : html`<pre class="plain" tabindex="0">${words}</pre>`}${rest}`;
}

function isJson(part, words) {
  if (part.truncated || !/^\s*[{[]/.test(words)) return false;
  try {
    JSON.parse(words);
    return true;
  } catch {
    return false;
  }
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
