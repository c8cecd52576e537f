// Lists that the broker gives in pages, by name: a filter that the broker applies, and steps forward and back.

import { html, useState } from "./vendor/preact.js";
import { useGet } from "./api.js";
import { Filter } from "./parts.js";
import { replace } from "./router.js";

const LIMIT = 100;

/**
 * `answer` of the present page, and the controls. `segments` and `query` are the view's: the filter is in its address. `path` null
 * asks nothing.
 * `list`: the name of the list in the answer.
 */
export function usePages(path, list, { segments, query, everyS = 5 }) {
  const filter = query.filter ?? "";
  // The names after which the pages up to the present one begin.
  const [state, setState] = useState({ filter, starts: [""] });
  const starts = state.filter === filter ? state.starts : [""];
  const set = (next) => setState({ filter, starts: next });
  const after = starts.at(-1);
  const answer = useGet(path, { limit: LIMIT, after, filter }, everyS);
  const rows = answer.data?.[list] ?? [];
  const next = answer.data?.next;
  return {
    answer,
    rows,
    filter,
    isFirst: starts.length === 1,
    filterField: (label) => html`<${Filter} label=${label} value=${filter}
      onChange=${(text) => replace(segments, { ...query, filter: text })} />`,
    controls: (starts.length > 1 || next) && html`<p class="pages">
      <button type="button" disabled=${starts.length === 1} onClick=${() => set(starts.slice(0, -1))}>Previous</button>
      <span class="quiet">Page ${starts.length}, ${rows.length} rows. Sorting is within the page.</span>
      <button type="button" disabled=${!next} onClick=${() => set([...starts, next])}>Next</button>
    </p>`,
  };
}
