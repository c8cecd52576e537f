// The reactor as a drawing: acceptor, processors with their connections, request channel, handlers. One sees where it backs up.

import { html } from "../vendor/preact.js";
import { ago, bytes, count, plural, share, text } from "../format.js";
import { usePages } from "../paged.js";
import { Badge, Bar, Empty, Loaded, Name, Notice, Table } from "../parts.js";
import { useLive } from "../stream.js";
import { backlog, level, reasonOf, RECEPTIVE } from "../reactor_state.js";

const DOTS_MAX = 48;
const CELLS_MAX = 40;

export function Reactor({ segments, query }) {
  const pages = usePages("/connections", "connections", { segments, query, everyS: 3 });
  const live = useLive({ reactor: true });
  const shown = live.following && live.reactor ? live.reactor : pages.answer.data;
  return html`
    <h1 tabindex="-1">Reactor</h1>
    <${Loaded} answer=${pages.answer}>${() => html`
      <${Drawing} reactor=${shown.reactor ?? {}} />
      ${shown.control && html`<h2>Control plane</h2><${Drawing} reactor=${shown.control} />`}
      <h2>Connections</h2>
      ${pages.rows.length
        ? html`<${Table} label="Connections" kind="dense" columns=${COLUMNS} rows=${pages.rows} rowKey=${(row) => String(row.id)} />`
        : html`<${Empty} title="There is no connection." />`}`}<//>
    ${pages.controls}
  `;
}

function Drawing({ reactor }) {
  const { acceptor = {}, processors = [], channel = {}, handlers = {}, memory = {} } = reactor;
  const verdict = backlog(reactor);
  const at = (stage) => (verdict.where === stage ? ` ${verdict.kind}` : "");
  return html`
    <${Notice} kind=${verdict.kind}>${verdict.text}<//>
    <div class="reactor" role="group" aria-label="The reactor, from the acceptor to the handlers">
      <section class=${`stage${at("acceptor")}`}>
        <h2>Acceptor</h2>
        <dl class="facts"><div><dt>accepted</dt><dd>${count(acceptor.accepted)}</dd></div><div><dt>refused</dt><dd>${count(acceptor.refused)}</dd></div></dl>
      </section>
      <span class="flow" aria-hidden="true"></span>
      <section class=${`stage wide${at("processors")}`}>
        <h2>Processors</h2>
        ${processors.map((each) => html`<${Processor} key=${each.id} processor=${each} />`)}
        ${processors.length > 0 && html`<${Legend} processors=${processors} />`}
      </section>
      <span class="flow" aria-hidden="true"></span>
      <section class=${`stage${at("channel")}`}>
        <h2>Request channel</h2>
        <${Cells} used=${channel.depth} of=${channel.capacity} label="requests wait" kind=${level(channel.depth, channel.capacity)} />
        <p class="quiet">${count(channel.depth)} of ${count(channel.capacity)} places</p>
        <h3>Memory for requests</h3>
        <${Bar} value=${memory.used} of=${memory.capacity} label=${`${bytes(memory.used)} of ${bytes(memory.capacity)}`} kind=${level(memory.used, memory.capacity)} />
        <p class="quiet">${bytes(memory.used)}${memory.capacity > 0 ? ` of ${bytes(memory.capacity)}` : ""}</p>
      </section>
      <span class="flow" aria-hidden="true"></span>
      <section class=${`stage${at("handlers")}`}>
        <h2>Handlers</h2>
        <${Cells} used=${handlers.busy} of=${handlers.threads} label="handlers are busy" kind=${level(handlers.busy, handlers.threads)} />
        <p class="quiet">${known(handlers.busy) ? `${count(handlers.busy)} of ${count(handlers.threads)} busy` : plural(handlers.threads, "thread")}${known(handlers.idle) ? `, ${share(handlers.idle)} idle` : ""}</p>
      </section>
    </div>
  `;
}

function Processor({ processor }) {
  const muted = Object.entries(processor.muted ?? {}).filter(([, number]) => number > 0);
  const total = processor.connections ?? 0;
  const held = muted.reduce((sum, [, number]) => sum + number, 0);
  // A connection may have several reasons: then there are fewer connections than reasons.
  const dots = [...muted.flatMap(([reason, number]) => Array(Math.min(number, DOTS_MAX)).fill(reasonOf(reason).kind)), ...Array(Math.max(0, Math.min(total - held, DOTS_MAX))).fill(RECEPTIVE)].slice(0, Math.min(total, DOTS_MAX));
  const busy = known(processor.idle) ? 1 - processor.idle : null;
  return html`<div class="processor">
    <div class="processor-head">
      <span class="processor-name">${text(processor.id)}</span>
      ${known(busy) && html`<${Bar} value=${busy} of=${1} label=${`busy ${share(busy)}`} kind=${level(busy, 1)} />
      <span class="number quiet">${share(busy)} busy</span>`}
      <span class="number">${plural(total, "connection")}</span>
    </div>
    <div class="dots" role="img" aria-label=${words(total, muted)}>
      ${dots.map((kind, index) => html`<span key=${index} class=${`conn ${kind}`}></span>`)}
      ${total > dots.length && html`<span class="quiet">+${count(total - dots.length)}</span>`}
    </div>
  </div>`;
}

const known = (value) => typeof value === "number";
const words = (total, muted) =>
  [plural(total, "connection"), ...muted.map(([reason, number]) => `${count(number)} ${reasonOf(reason).label}`)].join(", ");

function Legend({ processors }) {
  const sums = new Map();
  let held = 0;
  for (const { muted = {} } of processors) {
    for (const [reason, number] of Object.entries(muted)) {
      sums.set(reason, (sums.get(reason) ?? 0) + number);
      held += number;
    }
  }
  const open = Math.max(0, processors.reduce((sum, each) => sum + (each.connections ?? 0), 0) - held);
  return html`<p class="legend">
    <span class="legend-part"><span class=${`conn ${RECEPTIVE}`}></span>${count(open)} ready</span>
    ${[...sums].filter(([, number]) => number > 0).map(([reason, number]) => {
      const { label, kind, doc } = reasonOf(reason);
      return html`<span key=${reason} class="legend-part" title=${doc}><span class=${`conn ${kind}`}></span>${count(number)} ${label}</span>`;
    })}
  </p>`;
}

/** One cell for each place, filled where it is taken; a bar where there are too many. */
function Cells({ used, of, label, kind }) {
  const name = `${count(used)} ${label}, of ${count(of)}`;
  if (!(of > 0) || of > CELLS_MAX) return html`<${Bar} value=${used ?? 0} of=${of ?? 0} label=${name} kind=${kind} />`;
  return html`<span class=${`cells ${kind}`} role="img" aria-label=${name}>
    ${Array.from({ length: of }, (_, index) => html`<span key=${index} class=${index < used ? "cell taken" : "cell"}></span>`)}
  </span>`;
}

const COLUMNS = [
  { name: "peer", label: "Peer", sort: (row) => text(row.peer), cell: (row) => html`<code>${text(row.peer)}</code>` },
  { name: "mute", label: "State", cell: (row) => (row.mute?.length ? row.mute.map((reason) => html`<${Badge} key=${reason} kind=${reasonOf(reason).badge}>${reasonOf(reason).label}<//> `) : html`<${Badge} kind="good">ready<//>`) },
  { name: "client", label: "Client", grow: true, sort: (row) => text(row.client_id), cell: (row) => html`<${Name} value=${row.client_id} most=${60} />` },
  { name: "software", label: "Software", sort: (row) => text(row.software), cell: (row) => html`<${Name} value=${[row.software, row.version].filter(Boolean).join(" ")} most=${40} />` },
  { name: "requests", label: "Requests", number: true, sort: (row) => row.requests, cell: (row) => count(row.requests) },
  { name: "in", label: "In", number: true, sort: (row) => row.bytes_in, cell: (row) => bytes(row.bytes_in) },
  { name: "out", label: "Out", number: true, sort: (row) => row.bytes_out, cell: (row) => bytes(row.bytes_out) },
  { name: "listener", label: "Listener", sort: (row) => text(row.listener), cell: (row) => text(row.listener) },
  { name: "processor", label: "Processor", number: true, id: true, sort: (row) => text(row.processor), cell: (row) => text(row.processor).replace(/^processor-/, "") },
  { name: "since", label: "Opened", number: true, sort: (row) => row.since_ms, cell: (row) => ago(row.since_ms) },
  { name: "principal", label: "Principal", cell: (row) => html`<${Name} value=${row.principal} most=${40} />` },
];
