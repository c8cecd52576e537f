"""The tokens of --format."""

import click
import pytest

from broker.cli.record_format import line_parser, parse_template


@pytest.mark.parametrize(
    ("text", "fields", "literals"),
    [
        ("%k %v", "kv", [b"", b" ", b"\n"]),
        ("%s", "v", [b"", b"\n"]),
        (r"%v\n", "v", [b"", b"\n"]),
        (r"%v\c", "v", [b"", b""]),
        (r"%t[%p]@%o\t100%%\x41\\", "tpo", [b"", b"[", b"]@", b"\t100%A\\\n"]),
        (r"%R%K%S%T%h\0", "RKSTh", [b"", b"", b"", b"", b"", b"\x00\n"]),
    ],
)
def test_templates(text: str, fields: str, literals: list[bytes]) -> None:
    template = parse_template(text)
    assert (tuple(fields), tuple(literals)) == (template.fields, template.literals)


@pytest.mark.parametrize(
    ("text", "why"), [("%x", "%x"), ("%", "knows no %:"), (r"\q", r"\\q"), (r"\c%v", "only at the end")]
)
def test_a_wrong_template_is_named(text: str, why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        parse_template(text)


@pytest.mark.parametrize(
    ("text", "line", "fields"),
    [
        ("%k:%v", b"a:b:c", (b"a", b"b:c")),
        ("%k:%v", b":", (b"", b"")),
        ("%k:%v", b"a", None),
        ("%p %k %v", b"3 key and value", (b"3", b"key", b"and value")),
        ("%p %v", b"x value", None),
        ("<%v>", b"<a>b>", (b"a>b",)),
        ("%v.", b"a", None),
        ("%v", b"\xff\r", (b"\xff\r",)),
    ],
)
def test_lines_are_read_by_a_template(text: str, line: bytes, fields: tuple[bytes, ...] | None) -> None:
    assert fields == line_parser(parse_template(text))(line)


@pytest.mark.parametrize(
    ("text", "why"),
    [("%k", "%v"), ("%k%v", "between"), (r"%k\n%v", "middle"), ("%v %v", "only once"), ("%R %v", "%R")],
)
def test_templates_that_cannot_be_read_by(text: str, why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        line_parser(parse_template(text))
