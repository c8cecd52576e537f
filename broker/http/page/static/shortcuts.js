// Keys: `g` and a letter goes to a view, `/` to the filter, `?` shows them all. Never while somebody types.

import { html, useEffect, useLayoutEffect, useRef } from "./vendor/preact.js";
import { to } from "./router.js";
import { VIEWS } from "./views.js";

const GO_WITHIN_MS = 1500;

export function useShortcuts(showHelp) {
  // Before the first paint: a key that is pressed as soon as something is seen counts.
  useLayoutEffect(() => {
    let goingUntil = 0;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
      const going = performance.now() < goingUntil;
      goingUntil = 0;
      const view = going && VIEWS.find((each) => each.key === event.key);
      if (view) location.hash = to(view.path);
      else if (event.key === "g") goingUntil = performance.now() + GO_WITHIN_MS;
      else if (event.key === "?") showHelp();
      else if (event.key === "/") {
        const filter = document.querySelector("[data-filter]");
        if (!filter) return;
        filter.focus();
        filter.select();
      } else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}

const typing = (element) => element.matches?.("input, textarea, select, [contenteditable]") ?? false;

export function Shortcuts({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="shortcuts" onClose=${onClose} onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <div class="dialog">
      <h2 id="shortcuts">Shortcuts</h2>
      <dl class="keys">
        <div><dt><kbd>/</kbd></dt><dd>Filter</dd></div>
        <div><dt><kbd>?</kbd></dt><dd>These shortcuts</dd></div>
        ${VIEWS.filter((view) => view.key).map(
          (view) => html`<div key=${view.name}><dt><kbd>g</kbd> <kbd>${view.key}</kbd></dt><dd>${view.label}</dd></div>`,
        )}
      </dl>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button>
    </div>
  </dialog>`;
}
