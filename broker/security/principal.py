"""Principals, and how they are derived from certificates. Pure.

A `Principal` is a value; ``str()`` is the form in ACLs and super.users, such as ``User:alice``.

`java_name` writes the subject of a certificate exactly as Java's ``X500Principal.getName()``, because ACLs contain it.
That is RFC 2253 with Java's choices: the last part comes first; there are nine keywords, and every other attribute is
its number and the hexadecimal DER of its value; ``=`` and ``#`` are always escaped, and other characters are not.

``ssl.principal.mapping.rules`` turn the subject of a certificate into the name of a principal, like Kafka's
SslPrincipalMapper. A rule is ``DEFAULT`` or ``RULE:pattern/replacement/`` with an optional ``L`` or ``U`` after it. The
first rule whose pattern matches the whole subject counts; ``$1`` in the replacement is the match of the first group.
Patterns are Python's regular expressions, which agree with Java's in all that such rules use. They come from the
operator, but the subject comes from a client, so its length is bounded.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from broker.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

USER = "User"


@attrs.frozen(slots=True)
class Principal:
    """Kafka's KafkaPrincipal. ``name`` is any text: it may contain colons, commas and spaces."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# A client of a listener without authentication.
ANONYMOUS = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """``User:alice``. Raises ConfigError without a type or a name."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"Write the principal {text!r} as TYPE:NAME, for example User:alice.")
    return Principal(kind, name)


# Java's keywords for RFC 2253.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# Tags of DER: PrintableString, T61String, IA5String, GeneralString, BMPString and UTF8String are texts to Java.
_TEXTS = {0x13, 0x14, 0x16, 0x1B, 0x1E, 0x0C}
_ESCAPED = set(',=+<>#;"\\')
_BLANKS = " \r"


def java_name(name: "x509.Name") -> str:
    """For example ``CN=alice,OU=team,O=ACME``."""
    sets = [content for _, content, _ in _elements(next(_elements(name.public_bytes()))[1])]
    return ",".join("+".join(map(_assertion, _elements(each))) for each in reversed(sets))


def _assertion(element: tuple[int, bytes, bytes]) -> str:
    (_, number, _), (tag, value, whole) = _elements(element[1])
    kind = _dotted(number)
    if kind not in _KEYWORDS or tag not in _TEXTS:
        return f"{_KEYWORDS.get(kind, kind)}=#{whole.hex()}"
    return f"{_KEYWORDS[kind]}={_escaped(value.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    escaped = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in text)
    leading = len(escaped) - len(escaped.lstrip(_BLANKS))
    body = escaped[leading:].rstrip(_BLANKS)
    trailing = escaped[leading + len(body) :]
    return "".join(f"\\{blank}" for blank in escaped[:leading]) + body + "".join(f"\\{blank}" for blank in trailing)


def _elements(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, content and whole bytes of each element. ``der`` is well-formed, because `cryptography` has written it."""
    position = 0
    while position < len(der):
        begin, tag, length = position, der[position], der[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[position : position + size], "big")
            position += size
        yield tag, der[position : position + length], der[begin : position + length]
        position += length


def _dotted(number: bytes) -> str:
    """An object identifier as text."""
    arcs, value = [], 0
    for byte in number:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(value)
            value = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


# The longest subject (characters): matching the operator's pattern may take time that grows with a power of the length.
SUBJECT_MAX = 1024

_PIECE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_PIECE})\s*(,\s*|$)", re.DOTALL)
_PARSER = re.compile(_PIECE, re.DOTALL)
_REPLACEMENT = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class NoRuleMatches(Exception):
    """No rule matches the client's certificate, so the client is refused."""


@attrs.frozen
class Rule:
    """``pattern``: None for DEFAULT."""

    pattern: "re.Pattern[str] | None" = None
    replacement: str = ""
    case: str = ""  # L, U, or nothing

    def apply(self, subject: str) -> str | None:
        """The name; None if the rule does not match."""
        if self.pattern is None:
            return subject
        if not self.pattern.fullmatch(subject):
            return None
        result = self.pattern.sub(self._expand, subject)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _expand(self, match: "re.Match[str]") -> str:
        groups = self.pattern.groups if self.pattern is not None else 0

        def expanded(part: "re.Match[str]") -> str:
            if part[2] is None:
                return part[1]
            digits = part[2]
            used = len(digits)  # as many digits as name an existing group; the rest is text
            while used > 1 and int(digits[:used]) > groups:
                used -= 1
            if int(digits[:used]) > groups:
                return f"${digits}"
            return (match[int(digits[:used])] or "") + digits[used:]

        return _REPLACEMENT.sub(expanded, self.replacement)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Raises ConfigError."""
    rules = []
    for piece in _SPLITTER.finditer(text.strip()):
        match = _PARSER.match(piece[1])
        if match is None or match.end() != len(piece[1]):
            raise ConfigError(
                f"Correct ssl_principal_mapping_rules at {piece[1]!r}: a rule is DEFAULT or RULE:pattern/replacement/ with "
                "L, U or nothing after it."
            )
        if match[1] is not None:
            rules.append(Rule())
        elif match[2] is not None:
            try:
                rules.append(Rule(re.compile(match[2]), match[3], match[4]))
            except re.error as error:
                raise ConfigError(
                    f"Correct the pattern {match[2]!r} in ssl_principal_mapping_rules: {error.msg}."
                ) from None
    return tuple(rules)


def map_subject(rules: Sequence[Rule], subject: str) -> str:
    """Raises NoRuleMatches."""
    if len(subject) <= SUBJECT_MAX:
        for rule in rules:
            name = rule.apply(subject)
            if name is not None:
                return name
    raise NoRuleMatches(f"no rule of ssl_principal_mapping_rules matches {subject[:SUBJECT_MAX]!r}")
