// The choice between light, dark and the system's scheme. Charts, which are drawn, hear of a change by `schemechange`.

import { html, useState } from "./vendor/preact.js";

const NEXT = { system: "light", light: "dark", dark: "system" };
const SIGN = { system: "◐", light: "○", dark: "●" };

export function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const change = () => {
    const next = NEXT[theme];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // The choice lasts as long as the page.
    }
    setTheme(next);
    dispatchEvent(new Event("schemechange"));
  };
  return html`<button type="button" class="tool" title="Colours" aria-label=${`Colours: ${theme}`} onClick=${change}>
    ${SIGN[theme]}
  </button>`;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("schemechange")));
