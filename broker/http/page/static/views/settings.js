// All settings of the broker, as they are in force now.

import { html } from "../vendor/preact.js";
import { useGet } from "../api.js";
import { Filter, Loaded } from "../parts.js";
import { replace } from "../router.js";
import { SettingsTable } from "../settings_table.js";

export function Settings({ segments, query }) {
  const answer = useGet("/settings", {}, 15);
  const filter = query.filter ?? "";
  return html`
    <div class="title">
      <h1 tabindex="-1">Settings</h1>
      <${Filter} label="Filter settings" value=${filter} onChange=${(typed) => replace(segments, { filter: typed })} />
    </div>
    <${Loaded} answer=${answer}>${() => html`
      <${SettingsTable} label="Settings" settings=${answer.data.settings} filter=${filter} />
      <p class="quiet">Settings marked <em>live</em> change without a restart: <code>broker configs</code>.</p>`}<//>
  `;
}
