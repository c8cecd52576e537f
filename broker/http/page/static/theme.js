// Light, dark, or as the system has it. Runs before the first paint, so that a dark page does not flash.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // The browser keeps nothing for pages: follow the system.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
