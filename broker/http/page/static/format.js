// Figures as people read them. Everything that is missing is a dash.

const DASH = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1,234,567 */
export const count = (value) => (known(value) ? whole.format(value) : DASH);

/** 1.23 M: for where there is little room. */
export function compact(value) {
  if (!known(value)) return DASH;
  return scaled(value, 1000, ["", " k", " M", " G", " T", " P"]);
}

/** 1.5 MiB */
export function bytes(value) {
  if (!known(value)) return DASH;
  return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
}

export const rate = (value) => (known(value) ? `${compact(value)}/s` : DASH);
export const byteRate = (value) => (known(value) ? `${bytes(value)}/s` : DASH);
export const share = (value) => (known(value) ? `${Math.round(value * 100)} %` : DASH);

function scaled(value, base, units) {
  let index = 0;
  let rest = Math.abs(value);
  // What would be written as 1000 k is 1 M.
  while (Math.round(rest) >= base && index < units.length - 1) {
    rest /= base;
    index += 1;
  }
  const digits = rest >= 100 || (index === 0 && Number.isInteger(value)) ? 0 : rest >= 10 ? 1 : 2;
  const text = rest.toFixed(digits);
  return (value < 0 ? "−" : "") + (digits ? text.replace(/\.?0+$/, "") : text) + units[index];
}

/** A duration in s: 350 µs, 12 ms, 4.2 s, 3 min 5 s, 2 h 4 min, 3 d 2 h. */
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 0) return "0 s";
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${short(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short(seconds * 1000)} ms`;
  if (seconds < 60) return `${short(seconds)} s`;
  const s = Math.floor(seconds);
  if (s < 3600) return two(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return two(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

const short = (value) => String(value >= 100 ? Math.round(value) : Number(value.toPrecision(2)));
const two = (major, unit, minor, rest) => (minor ? `${major} ${unit} ${minor} ${rest}` : `${major} ${unit}`);
const pad = (value, width = 2) => String(value).padStart(width, "0");

/** A time in ms since the epoch, in the reader's time zone: 14:03:21.123, with the date if it is another day. */
export function time(ms, now = Date.now()) {
  if (!known(ms) || ms < 0) return DASH;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return at.toDateString() === new Date(now).toDateString() ? clock : `${day} ${clock}`;
}

/** How long ago that was. */
export function ago(ms, now = Date.now()) {
  if (!known(ms) || ms < 0) return DASH;
  const seconds = (now - ms) / 1000;
  return seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`;
}

/** What a setting, a name or a field says, as text. Never an object: only text reaches the page. */
export function text(value) {
  if (value === null || value === undefined || value === "") return DASH;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** At most so many characters; the rest is an ellipsis. */
export function cut(value, most = 120) {
  const whole_ = text(value);
  return whole_.length > most ? `${whole_.slice(0, most)}…` : whole_;
}

/** "1 partition", "3 partitions". */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
