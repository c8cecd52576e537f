"""Lines to records, and the first bad line."""

import pytest

from broker.cli.record_format import parse_template
from broker.cli.record_input import BadLine, Common, Parser, formatted_lines, json_lines, keyed_lines, whole_lines
from broker.client.kafka.record_encoder import NO_HEADERS, encode_headers


def by_template(text: str) -> Parser:
    return formatted_lines(parse_template(text), Common())


def test_whole_lines_are_values() -> None:
    parsed = whole_lines(Common())([b"one", b""], 5)
    assert ([b"one", b""], None, None, None, None) == (
        parsed.records.values,
        parsed.records.keys,
        parsed.records.headers,
        parsed.records.times,
        parsed.partitions,
    )


def test_command_line_options_apply_to_every_record() -> None:
    common = Common(b"k", [(b"a", b"1")], tombstones=True)
    records = whole_lines(common)([b"one", b""], 5).records
    assert ([b"one", None], [b"k", b"k"]) == (records.values, records.keys)
    assert [encode_headers([(b"a", b"1")])] * 2 == records.headers


def test_keys_before_a_separator() -> None:
    records = keyed_lines(b"=", Common(b"ignored"))([b"a=b=c", b"=d"], 5).records
    assert ([b"a", b""], [b"b=c", b"d"]) == (records.keys, records.values)


def test_a_template_names_partition_time_and_headers() -> None:
    parsed = by_template("%p %T %h %k %v")([b"3 -1 a=1,b= key the value", b"0 77  k v"], 5)
    assert [3, 0] == parsed.partitions
    assert ([5, 77], [b"key", b"k"], [b"the value", b"v"]) == (
        parsed.records.times,
        parsed.records.keys,
        parsed.records.values,
    )
    assert [encode_headers([(b"a", b"1"), (b"b", b"")]), NO_HEADERS] == parsed.records.headers


def test_json_lines() -> None:
    parsed = json_lines(Common(b"k", [(b"a", b"1")]))(
        [b'{"value": "x"}', b'{"value": null, "key": "y", "partition": 1}'], 5
    )
    assert ([b"x", None], [b"k", b"y"], [5, 5]) == (parsed.records.values, parsed.records.keys, parsed.records.times)
    assert [None, 1] == parsed.partitions


@pytest.mark.parametrize(
    ("parser", "bad", "why"),
    [
        (keyed_lines(b":", Common()), b"b", "has no key"),
        (by_template("%k:%v"), b"b", "does not have the form '%k:%v'"),
        (by_template("%p:%v"), b"4294967296:b", "4294967296"),
        (by_template("%p:%v"), b"-1:b", "-1"),
        (by_template("%T:%v"), b"9999999999999999999:b", "9999999999999999999"),
        (by_template("%k:%h:%v"), b"b:b:b", "headers"),
        (json_lines(Common()), b"b", "cannot be read"),
    ],
)
def test_the_first_bad_line_is_named(parser: Parser, bad: bytes, why: str) -> None:
    good = {"%k:%h:%v": b"a::b"}
    line = b'{"value": ""}' if "cannot be read" == why else b"1:a=1:b"
    with pytest.raises(BadLine, match=why) as error:
        parser([good.get(why, line), bad, bad], 5)
    assert 1 == error.value.index


def test_a_tombstone_needs_a_key() -> None:
    with pytest.raises(BadLine, match="needs a key") as error:
        whole_lines(Common(tombstones=True))([b"a", b""], 5)
    assert 1 == error.value.index
