// Who asks, where the broker wants to know: a user with a password, or a token. Kept in the page's memory, until it is closed.

import { html, useState } from "./vendor/preact.js";
import { prove } from "./api.js";
import { Notice } from "./parts.js";

export function Login({ failed }) {
  const [kind, setKind] = useState("password");
  const submit = (event) => {
    event.preventDefault();
    const { user, secret } = Object.fromEntries(new FormData(event.target));
    prove(kind === "token" ? `Bearer ${secret.trim()}` : `Basic ${base64(`${user}:${secret}`)}`);
  };
  return html`
    <h1 tabindex="-1">Log in</h1>
    <p class="quiet">This broker shows its figures to clients that it knows.</p>
    ${failed && html`<${Notice} kind="bad">The broker has not accepted this.<//>`}
    <form class="login" onSubmit=${submit}>
      <label>With <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
        <option value="password">user and password</option>
        <option value="token">token</option>
      </select></label>
      ${kind === "password" && html`<label>User <input name="user" required autocomplete="username" spellcheck="false" /></label>`}
      <label>${kind === "token" ? "Token" : "Password"} <input name="secret" type="password" required autocomplete="current-password" /></label>
      <button type="submit" class="primary">Log in</button>
    </form>
  `;
}

/** Of UTF-8. */
const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
