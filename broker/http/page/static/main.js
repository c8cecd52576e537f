// The frame around the views: the list of views, the line of health, shortcuts, and what is shown while the broker is away.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { access, useGet, useLink } from "./api.js";
import { duration, text } from "./format.js";
import { Login } from "./login.js";
import { Notice } from "./parts.js";
import { to, useRoute } from "./router.js";
import { useShortcuts, Shortcuts } from "./shortcuts.js";
import { useLive } from "./stream.js";
import { ThemeButton } from "./theme_button.js";
import { VIEWS, viewOf } from "./views.js";

function Page() {
  const route = useRoute();
  const overview = useOverview();
  const [help, setHelp] = useState(false);
  const view = viewOf(route.segments);
  useShortcuts(() => setHelp(true));
  const title = view.title(route.segments);
  const main = useRef(null);
  const seen = useRef(null);
  useEffect(() => {
    document.title = `${title} · Broker`;
    // A new view is announced from its heading; the first one leaves the focus where the browser has it.
    if (seen.current !== null && seen.current !== title) main.current?.querySelector("h1")?.focus();
    seen.current = title;
    showCurrent(document.querySelector("nav"));
  }, [title]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => skip(event, main)}>Skip to the figures</a>
    <header>
      <a class="brand" href="#/" aria-label="Broker: overview"><span class="mark" aria-hidden="true"></span>Broker</a>
      <${Health} overview=${overview.data} />
      <div class="tools">
        <${ThemeButton} />
        <button type="button" class="tool" title="Shortcuts (?)" aria-label="Shortcuts" onClick=${() => setHelp(true)}>?</button>
      </div>
    </header>
    <nav aria-label="Views">
      ${VIEWS.filter((each) => each.key).map(
        (each) =>
          html`<a key=${each.name} href=${to(each.path)} aria-current=${each.name === view.within ? "page" : undefined}>${each.label}</a>`,
      )}
    </nav>
    <main id="main" ref=${main}>
      <${Away} />
      ${access.wanted
        ? html`<${Login} failed=${access.number > 0} />`
        : html`<${Guarded} key=${location.hash.split("?")[0]}>
            <${view.component} segments=${route.segments} query=${route.query} overview=${overview} />
          <//>`}
    </main>
    ${help && html`<${Shortcuts} onClose=${() => setHelp(false)} />`}
  `;
}

/** From the stream of live figures, or asked for where there is none: too many pages may be open. */
function useOverview() {
  const live = useLive({});
  const asked = useGet(live.following ? null : "/overview");
  return live.following && live.overview ? { data: live.overview, error: null } : { ...asked, data: asked.data ?? live.overview ?? null };
}

/** Scrolls the list of views, a row on a phone. Not by `scrollIntoView`, from where some browsers let the Tab key go on. */
function showCurrent(nav) {
  const link = nav.querySelector("[aria-current]")?.getBoundingClientRect();
  const row = nav.getBoundingClientRect();
  if (link) nav.scrollLeft += link.left + link.width / 2 - (row.left + row.width / 2);
}

function skip(event, main) {
  event.preventDefault();
  main.current?.querySelector("h1")?.focus();
}

function Health({ overview }) {
  const link = useLink();
  if (link.up === false) return html`<p class="health"><span class="dot bad"></span>no answer</p>`;
  if (!overview) return html`<p class="health"><span class="dot"></span></p>`;
  const well = overview.health?.status === "ok";
  return html`<p class="health">
    <span class=${`dot ${well ? "good" : "warn"}`}></span>
    <span>${well ? "healthy" : "degraded"}</span>
    <span class="quiet">node ${text(overview.node_id)}, version ${text(overview.version)}, up ${duration((overview.now_ms - overview.started_ms) / 1000)}</span>
  </p>`;
}

function Away() {
  const link = useLink();
  const [, tick] = useState(0);
  useEffect(() => {
    if (link.up !== false) return undefined;
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [link.up]);
  if (link.up !== false) return null;
  const since = Math.max(1, Math.round((Date.now() - link.since) / 1000));
  return html`<${Notice} kind="bad">
    The broker has not answered for ${duration(since)}. What you see is from before. The page tries again every few seconds.
  <//>`;
}

/** A view that fails takes only itself down. */
function Guarded({ children }) {
  const [error] = useErrorBoundary((problem) => console.error(problem));
  if (error) return html`<h1 tabindex="-1">This view has failed</h1><${Notice} kind="bad">${String(error)}<//>`;
  return children;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
