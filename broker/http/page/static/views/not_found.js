import { html } from "../vendor/preact.js";
import { Empty } from "../parts.js";

export const NotFound = () => html`
  <h1 tabindex="-1">Not found</h1>
  <${Empty} title="This page has no such view.">Choose one from the list of views.<//>
`;
