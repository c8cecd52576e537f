// JSON as people read it: indented and coloured. Works on the text itself, so that long numbers and double names stay as they are.

import { html } from "./vendor/preact.js";

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const TOKENS_MAX = 20000;
const DEPTH_MAX = 40;

/** The pieces of a JSON text: [kind, text], with white space among the text. What follows the longest part shown is "rest". */
export function pieces(text) {
  const found = [];
  const add = (kind, piece) => {
    const last = found.at(-1);
    if (last?.[0] === kind) last[1] += piece;
    else found.push([kind, piece]);
  };
  const line = (depth) => `\n${"  ".repeat(Math.min(depth, DEPTH_MAX))}`;
  const all = text.matchAll(TOKEN);
  let depth = 0;
  let count = 0;
  let opened = false; // nothing has come since an opening bracket
  let isName = false; // a string here is the name of a member
  const within = []; // for each open bracket, whether it is an object's
  for (const match of all) {
    const token = match[0];
    if ((count += 1) > TOKENS_MAX) {
      add("rest", `\n${text.slice(match.index)}`);
      break;
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      within.pop();
      add("mark", (opened ? "" : line(depth)) + token);
      opened = false;
      continue;
    }
    if (opened) add("mark", line(depth));
    opened = false;
    if (token === "{" || token === "[") {
      add("mark", token);
      depth += 1;
      within.push(token === "{");
      opened = true;
      isName = token === "{";
    } else if (token === ",") {
      add("mark", `,${line(depth)}`);
      isName = within.at(-1) ?? false;
    } else if (token === ":") {
      add("mark", ": ");
      isName = false;
    } else if (token[0] === '"') add(isName ? "name" : "string", token);
    else add(token === "true" || token === "false" || token === "null" ? "word" : "figure", token);
  }
  return found;
}

export const Json = ({ text }) =>
  html`<pre class="json" tabindex="0">${pieces(text).map(([kind, piece], index) => html`<span key=${index} class=${`json-${kind}`}>${piece}</span>`)}</pre>`;
