// Curves over the broker's history, drawn by uPlot. Their latest figures stand above them as text, for everybody.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { useGet } from "./api.js";
import { byteRate, bytes } from "./format.js";

const HEIGHT = 130;

const SPANS = { "10 min": 600, "1 h": 3600 };

/** Names as the parameter `series` has them, before it is encoded as every parameter: the broker replaces nothing else in them. */
export const seriesList = (names) => names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");

/** {times (s), values by name} of these series, refreshed. `missing`: why there are none. `spanField`: the choice how far back. */
export function useHistory(names, everyS = 5) {
  const [span, setSpan] = useState("10 min");
  const since = () => Date.now() - SPANS[span] * 1000;
  since.of = span;
  const answer = useGet("/history", { series: seriesList(names), since }, everyS);
  const spanField = html`<label class="span"><span class="hidden">How far back</span>
    <select value=${span} onChange=${(event) => setSpan(event.target.value)}>
      ${Object.keys(SPANS).map((name) => html`<option key=${name} value=${name}>last ${name}</option>`)}
    </select></label>`;
  const { start_ms: start, step_s: step, series } = answer.data ?? {};
  if (!series) return { times: [], values: {}, missing: answer.error, spanField };
  const length = Math.max(0, ...Object.values(series).map((each) => each.length));
  return { times: Array.from({ length }, (_, index) => start / 1000 + index * step), values: series, missing: null, spanField };
}

/** `series`: [{name, label, color}], where `color` is the name of one of the style sheet's. `now`: the latest figures by name, if
 * they are shown elsewhere as well: the history is asked for at other times. */
export function Chart({ title, history, series, format, now }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [scheme, setScheme] = useState(0);
  const columns = series.map(({ name }) => history.values[name] ?? []);
  const times = history.times;
  useEffect(() => {
    const changed = () => setScheme((n) => n + 1);
    addEventListener("schemechange", changed);
    return () => removeEventListener("schemechange", changed);
  }, []);
  useEffect(() => {
    const element = box.current;
    const made = new uPlot(options(element, series, format), [[], ...series.map(() => [])], element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [scheme, series.map(({ name }) => name).join()]);
  useEffect(() => {
    const known = columns.map((column) => times.map((_, index) => column[index] ?? null));
    plot.current?.setData([times, ...known]);
  });
  const latest = columns.map((column, index) => now?.[series[index].name] ?? column.findLast((value) => value !== null));
  return html`<figure class="chart">
    <figcaption>
      <span class="chart-title">${title}</span>
      ${series.map(
        ({ label, color }, index) => html`<span key=${label} class=${`key ${color === "bad" && !latest[index] ? "" : (color ?? COLORS[index])}`}>
          ${series.length > 1 ? `${label} ` : ""}<b>${format(latest[index])}</b>
        </span>`,
      )}
    </figcaption>
    <div class=${times.length ? "plot" : "plot blank"} ref=${box} aria-hidden="true"></div>
    ${!times.length && html`<p class="chart-empty">${history.missing?.message ?? "No history yet."}</p>`}
  </figure>`;
}

// Marks at round figures, where those are not decimal.
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const STEPS = new Map([[bytes, BYTE_STEPS], [byteRate, BYTE_STEPS]]);
const COLORS = ["one", "two", "three", "four"];

function options(element, series, format) {
  const color = (name) => colorOf(element, name);
  const grid = { stroke: color("line"), width: 1 };
  const axis = { stroke: color("quiet"), grid, ticks: { show: false }, font: `11px ${getComputedStyle(element).fontFamily}` };
  return {
    width: Math.max(80, element.clientWidth),
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 26, 0, 0], // half of the last mark lies to the right of the curve
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, grid: { show: false }, space: 70, size: 24, values: (_, marks) => marks.map(clock) },
      { ...axis, size: 68, space: 34, incrs: STEPS.get(format), values: (_, marks) => marks.map((mark) => format(mark)) },
    ],
    series: [
      {},
      ...series.map(({ label, color: name }, index) => ({
        label,
        stroke: color(name ?? COLORS[index]),
        fill: index === 0 ? color("one-fill") : undefined,
        width: 1.5,
        points: { show: false },
      })),
    ],
  };
}

/** A colour of the style sheet as a canvas understands it, which knows neither names nor schemes. */
function colorOf(element, name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function clock(seconds) {
  const at = new Date(seconds * 1000);
  const pad = (value) => String(value).padStart(2, "0");
  return `${pad(at.getHours())}:${pad(at.getMinutes())}${at.getSeconds() ? `:${pad(at.getSeconds())}` : ""}`;
}
