"""Reads the text of a Java properties file, which is how Kafka's tools take the settings of a client (``--command-config``).

Pure. No error shows a value, because it may be a password.
"""

import re

from broker.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
# A key ends at the first separator that has no backslash before it.
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.S)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Name -> value; a later line takes precedence. Raises ConfigError, which names ``source`` and the line."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # it matches the empty string
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        where = f"{source}, line {number}"
        found[_unescaped(key.group(), where)] = _unescaped(line[separator.end() :], where)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """The lines with a setting, their continuations joined, each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    continued = False
    for number, match in enumerate(_LINE.finditer(text.removeprefix("\ufeff")), 1):
        line = match.group().rstrip("\r\n").lstrip(_BLANK)
        if not continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        more = backslashes % 2 == 1
        part = line[:-1] if more else line
        if continued:
            lines[-1] = (lines[-1][0], lines[-1][1] + part)
        else:
            lines.append((number, part))
        continued = more
    return lines


def _unescaped(text: str, where: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        if match["code"] is not None:
            return chr(int(match["code"], 16))
        if match["letter"] == "u":
            raise ConfigError(f"Write \\u with four hexadecimal digits in {where}, and a backslash as two.")
        return _ESCAPES.get(match["letter"], match["letter"])

    plain = re.sub(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<letter>.))", replaced, text, flags=re.S)
    # Java writes what is beyond the first 65,536 characters as two escapes.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
