"""What `consume` prints of a record."""

from typing import Any, NamedTuple

import pytest

from broker.cli.record_format import by_template, json_line, parse_template, text_line
from broker.cli.record_input import Common, json_lines


class Record(NamedTuple):
    offset: int = 2
    timestamp: int = 3
    key: bytes | None = b"k"
    value: bytes | None = b"v\xff"
    headers: Any = (("a", b"1"), ("b\udcff", None))


def test_lines_of_text() -> None:
    assert b"v\xff\n" == text_line(None, False)("t", 1, Record())
    assert b"a=1,b\xff=\tk:v\xff\n" == text_line(b":", True)("t", 1, Record())
    assert b":\n" == text_line(b":", False)("t", 1, Record(key=None, value=None))


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("%k %v", b"k v\xff\n"),
        ("%t %p %o %T %K %S %h", b"t 1 2 3 1 2 a=1,b\xff=\n"),
        (r"%R%s\c", b"\x00\x00\x00\x02v\xff"),
        ("100%%", b"100%\n"),
    ],
)
def test_templates(template: str, printed: bytes) -> None:
    assert printed == by_template(parse_template(template))("t", 1, Record())


def test_nulls_in_a_template() -> None:
    null = Record(key=None, value=None, headers=[])
    assert b"||-1|-1|\xff\xff\xff\xff|\n" == by_template(parse_template("%k|%v|%K|%S|%R|%h"))("t", 1, null)


def test_json_comes_back() -> None:
    parsed = json_lines(Common())(
        [json_line("t", 1, Record())[:-1], json_line("t", 1, Record(key=None, value=None, headers=[]))[:-1]], 9
    )
    assert ([b"v\xff", None], [b"k", None], [3, 3], [1, 1]) == (
        parsed.records.values,
        parsed.records.keys,
        parsed.records.times,
        parsed.partitions,
    )
    assert parsed.records.headers is not None
    assert b"b\xff" in parsed.records.headers[0]
