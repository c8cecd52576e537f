"""The subject of a certificate as text, exactly as Java's ``X500Principal.getName()`` writes it, because ACLs are made of it.

That is RFC 2253 with Java's choices: the last part comes first; nine keywords, and for every other attribute its number and the
hexadecimal DER of its value; ``=`` and ``#`` are escaped wherever they stand, and other characters are not.
"""

from collections.abc import Iterator

from cryptography import x509

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


def java_name(name: x509.Name) -> str:
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
    """Tag, content and whole bytes of each element. ``der`` is well-formed: `cryptography` has written it."""
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
