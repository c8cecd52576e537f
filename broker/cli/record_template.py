r"""What `--format` says: text with a token for each field of a record, as kcat's -f has them. `consume` writes records by it, and
`produce` reads them.

``%k`` key, ``%v`` or ``%s`` value, ``%h`` headers (name=value, with commas), ``%t`` topic, ``%p`` partition, ``%o`` offset,
``%T`` time in ms, ``%K`` and ``%S`` sizes of key and value (-1 for null), ``%R`` the size of the value as four bytes, ``%%`` a
percent sign; ``\n``, ``\t``, ``\r``, ``\0``, ``\\``, ``\xHH``. A line break ends each record, unless the text ends with one or
with ``\c``.

Pure.
"""

import re
from collections.abc import Callable, Sequence

import attrs
import click

# Token -> field. A field has one canonical token.
_TOKENS = {"s": "v"} | {token: token for token in "kvhtpoTKSR"}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\x00", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<token>.?)|\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.S)


@attrs.frozen
class Template:
    """``literals`` has one more item than ``fields``: what stands before, between and after them."""

    text: str
    fields: tuple[str, ...]
    literals: tuple[bytes, ...]


def parse_template(text: str) -> Template:
    """Raises click.UsageError, which names what is wrong."""
    fields: list[str] = []
    literals = [b""]
    ends = False
    for piece in _PIECE.finditer(text):
        if ends:
            raise click.UsageError(r"Write \c only at the end of --format: it means that no line break follows.")
        token, escape = piece["token"], piece["escape"]
        if token == "%":
            literals[-1] += b"%"
        elif token is not None:
            if token not in _TOKENS:
                raise click.UsageError(
                    f"--format knows no %{token}: it has {', '.join('%' + name for name in _TOKENS)}."
                )
            fields.append(_TOKENS[token])
            literals.append(b"")
        elif piece["hex"]:
            literals[-1] += bytes.fromhex(piece["hex"])
        elif escape == "c":
            ends = True
        elif escape is not None:
            if escape not in _ESCAPES:
                raise click.UsageError(rf"--format knows no \{escape}: it has \n, \t, \r, \0, \\, \xHH and \c.")
            literals[-1] += _ESCAPES[escape]
        else:
            literals[-1] += piece["text"].encode("utf-8", "surrogateescape")
    if not ends and not literals[-1].endswith(b"\n"):
        literals[-1] += b"\n"
    return Template(text, tuple(fields), tuple(literals))


_PATTERNS = {"k": b"(.*?)", "v": b"(.*?)", "h": b"(.*?)", "t": b"(.*?)"}
_NUMBER = rb"(-?[0-9]{1,19})"


def line_parser(template: Template) -> Callable[[bytes], Sequence[bytes] | None]:
    """Reads lines, without their line breaks, that `consume` has written by this template: the fields in their order, or None for
    a line of another form. A field ends where the text that follows it comes first. Raises click.UsageError for templates that
    cannot be read."""
    if "v" not in template.fields:
        raise click.UsageError("Write %v, for the value, in --format.")
    if "R" in template.fields:
        raise click.UsageError("Leave %R out of --format: lines cannot have binary sizes in them.")
    literals = list(template.literals)
    literals[-1] = literals[-1].removesuffix(b"\n")
    if any(b"\n" in literal for literal in literals):
        raise click.UsageError(r"Leave \n out of the middle of --format: a record is one line of the input.")
    if not all(literals[1:-1]):
        raise click.UsageError(
            "Write something between the tokens of --format, so that one can see where a field ends."
        )
    repeated = {field for field in template.fields if template.fields.count(field) > 1}
    if repeated:
        raise click.UsageError(f"Write %{min(repeated)} only once in --format.")
    pattern = re.escape(literals[0])
    for field, literal in zip(template.fields, literals[1:], strict=True):
        pattern += _PATTERNS.get(field, _NUMBER) + re.escape(literal)
    fullmatch = re.compile(pattern, re.S).fullmatch

    def parse(line: bytes) -> Sequence[bytes] | None:
        match = fullmatch(line)
        return None if match is None else match.groups()

    return parse
