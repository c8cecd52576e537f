// Which view the address names: `#/topics/orders/messages?partition=2`. Segments may contain anything, percent-encoded.

import { useEffect, useState } from "./vendor/preact.js";

/** {segments, query} of a hash. What is not a valid escape stands for itself. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return {
    segments: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** The address of a view. Parameters that are empty are left out. */
export function to(segments, query = {}) {
  const used = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const tail = new URLSearchParams(used).toString();
  return "#/" + segments.map(encodeURIComponent).join("/") + (tail ? `?${tail}` : "");
}

export function go(segments, query) {
  location.hash = to(segments, query);
}

/** Change the address without a step in the history, as while somebody types into a filter. */
export function replace(segments, query) {
  history.replaceState(null, "", to(segments, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}
