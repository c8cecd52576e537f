// What the views are made of.

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { cut, text } from "./format.js";

/** What a view shows instead of its figures: that they are on their way, that there are none, or why they cannot be had. */
export function Loaded({ answer, empty, children }) {
  if (answer.data !== null) {
    return html`
      ${answer.error && answer.error.status !== 0 && html`<${Notice} kind="warn">${answer.error.message}<//>`}
      ${empty || children()}
    `;
  }
  if (!answer.error) return html`<p class="waiting" role="status">Loading.</p>`;
  // Without an answer the banner of the page says so.
  if (answer.error.status === 0) return html`<p class="waiting">There is nothing to show yet.</p>`;
  return html`<${Notice} kind=${answer.error.status === 404 ? "info" : "bad"}>${answer.error.message}<//>`;
}

export const Notice = ({ kind = "info", children }) =>
  html`<p class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : "status"}>${children}</p>`;

export const Empty = ({ title, children }) =>
  html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

/** A few figures in one row, each with its name. `items`: [{label, value, kind, title}] */
export const Figures = ({ items }) => html`
  <dl class="figures">
    ${items.filter(Boolean).map(
      ({ label, value, kind = "", title }) =>
        html`<div key=${label} class=${kind} title=${title}><dt>${label}</dt><dd>${value}</dd></div>`,
    )}
  </dl>
`;

/** A name that may be long or strange: shortened, whole when pointed at. */
export const Name = ({ value, most = 80 }) => html`<span class="name" title=${text(value)}>${cut(value, most)}</span>`;

export const Link = ({ to, value, most = 80 }) =>
  html`<a class="name" href=${to} title=${text(value)}>${cut(value, most)}</a>`;

/** A share of a whole, as a bar with its figure beside it. */
export const Bar = ({ value, of, label, kind = "" }) => {
  const part = of > 0 ? Math.max(0, Math.min(1, value / of)) : 0;
  return html`<span class=${`bar ${kind}`} role="img" aria-label=${label}>
    <span class="bar-fill" style=${{ width: `${part * 100}%` }}></span>
  </span>`;
};

/**
 * A table. `columns`: [{name, label, cell(row), sort(row), number, id, title, grow}]; one with `sort` can be clicked.
 * `order`: {by, down} at first. More than `most` rows are not drawn before they are asked for.
 */
/** `kind`: "dense" for many narrow columns; "stacked": on a phone the cells of a row lie below each other. */
export function Table({ label, columns, rows, rowKey, order: first, most = 200, rowClass, kind = "" }) {
  const [order, setOrder] = useState(first ?? null);
  const [shown, setShown] = useState(most);
  const sorted = useMemo(() => sortedRows(rows, columns, order), [rows, order]);
  const click = (name) =>
    setOrder((old) => ({ by: name, down: old?.by === name ? !old.down : Boolean(columns.find((c) => c.name === name).number) }));
  return html`
    <div class=${`table ${kind}`} role="region" aria-label=${label} tabindex="0">
      <table>
        <thead>
          <tr>
            ${columns.map((column) => {
              const active = order?.by === column.name;
              return html`<th
                key=${column.name}
                scope="col"
                class=${classOf(column)}
                title=${column.title}
                aria-sort=${active ? (order.down ? "descending" : "ascending") : undefined}
              >
                ${column.sort
                  ? html`<button type="button" class="sort" onClick=${() => click(column.name)}>
                      ${column.label}<span class="arrow" aria-hidden="true">${active ? (order.down ? "↓" : "↑") : ""}</span>
                    </button>`
                  : column.label}
              </th>`;
            })}
          </tr>
        </thead>
        <tbody>
          ${sorted.slice(0, shown).map(
            (row) => html`<tr key=${rowKey(row)} class=${rowClass?.(row)}>
              ${columns.map((column) => html`<td key=${column.name} class=${classOf(column, row)}>${column.cell(row)}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${sorted.length > shown &&
    html`<p class="more">
      ${shown} of ${sorted.length} rows.
      <button type="button" onClick=${() => setShown(shown + 5 * most)}>Show more</button>
    </p>`}
  `;
}

/** A nought among figures stands back, so that the others are seen. Numbers that are names (`id`) do not. */
const classOf = (column, row) =>
  [column.number && "number", column.grow && "grow", row && column.number && !column.id && column.sort?.(row) === 0 && "quiet"].filter(Boolean).join(" ") || undefined;

/** In a stable order; what is missing comes last. */
export function sortedRows(rows, columns, order) {
  const column = order && columns.find((each) => each.name === order.by);
  if (!column?.sort) return rows;
  const sign = order.down ? -1 : 1;
  const missing = (value) => value === null || value === undefined;
  return [...rows].sort((one, other) => {
    const a = column.sort(one);
    const b = column.sort(other);
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    return sign * (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b);
  });
}

/** The field that `/` goes to. Calls `onChange` when nobody has typed for a moment. */
export function Filter({ label, value, onChange }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return undefined;
    const timer = setTimeout(() => onChange(typed), 200);
    return () => clearTimeout(timer);
  }, [typed]);
  return html`<label class="filter">
    <span class="hidden">${label}</span>
    <input
      type="search"
      data-filter
      placeholder=${label}
      value=${typed}
      maxlength="200"
      autocomplete="off"
      spellcheck="false"
      onInput=${(event) => setTyped(event.target.value)}
    />
  </label>`;
}
