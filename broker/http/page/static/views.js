// Which views there are. `key`: the letter after `g`; a view without one is reached from another, `within` which it stays.

import { Overview } from "./views/overview.js";
import { NotFound } from "./views/not_found.js";

export const VIEWS = [{ name: "overview", label: "Overview", key: "o", path: [], component: Overview }].map((view) => ({
  within: view.name,
  title: () => view.label,
  ...view,
}));

const NOT_FOUND = { name: "not_found", within: null, component: NotFound, title: () => "Not found" };

/** A pattern's null stands for any segment. */
export function viewOf(segments) {
  return VIEWS.find((view) => matches(view.path, segments)) ?? NOT_FOUND;
}

const matches = (path, segments) =>
  path.length === segments.length && path.every((part, index) => part === null || part === segments[index]);
