"""Key groups, against what Flink 2.3's KeyGroupRangeAssignment answered on Java 17."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.shuffle.writing.channel_selector import (
    Int32,
    assign,
    default_max_parallelism,
    java_hash,
    key_group,
    subpartition_of,
)
from tests.loops import loop_over

# key, hashCode, key group of 128, subpartition for (parallelism, max parallelism) of 3/128, 16/128, 100/256, 7/32768
FLINK = [
    ("", 0, 94, 2, 11, 86, 6),
    ("a", 97, 81, 1, 10, 81, 4),
    ("hello", 99162322, 35, 0, 4, 63, 6),
    ("Straße", -1808122922, 57, 1, 7, 72, 0),
    ("日本", 835047, 95, 2, 11, 37, 2),
    ("\U0001f600x", 54959989, 60, 1, 7, 73, 6),
    (0, 0, 94, 2, 11, 86, 6),
    (1, 1, 86, 2, 10, 83, 3),
    (-1, 0, 94, 2, 11, 86, 6),
    (123456789012345, -2045923535, 61, 1, 7, 23, 6),
    (-(1 << 63), -2147483648, 108, 2, 13, 42, 2),
    ((1 << 63) - 1, -2147483648, 108, 2, 13, 42, 2),
    (Int32(-1), -1, 80, 1, 10, 31, 3),
    (Int32(7), 7, 113, 2, 14, 94, 0),
    (Int32(-(1 << 31)), -2147483648, 108, 2, 13, 42, 2),
    (0.0, 0, 94, 2, 11, 86, 6),
    (-0.0, -2147483648, 108, 2, 13, 42, 2),
    (1.5, 1073217536, 65, 1, 8, 25, 0),
    (math.nan, 2146959360, 41, 0, 5, 66, 2),
    (-3.25e100, -1982068206, 6, 0, 0, 2, 3),
    (True, 1231, 77, 1, 9, 80, 2),
    (False, 1237, 3, 0, 0, 1, 6),
    (("a", 1), 3008, 29, 0, 3, 61, 6),
    (("k", -5, True), 104182, 119, 2, 14, 46, 1),
    (["a", 1], 3969, 75, 1, 9, 79, 4),
    (((3,), "x"), 213, 93, 2, 11, 36, 2),
]


@loop_over(("key", "code", "group", "of_3", "of_16", "of_100", "of_7"), FLINK)
def test_key_goes_to_flinks_subpartition(
    key: Any, code: int, group: int, of_3: int, of_16: int, of_100: int, of_7: int
) -> None:
    assert (code, group) == (java_hash(key), key_group(key, 128))
    assert (of_3, of_16) == (assign(key, 3, 128), assign(key, 16, 128))
    assert (of_100, of_7) == (assign(key, 100, 256), assign(key, 7, 32768))


def test_bytes_are_hashed_as_a_java_array() -> None:
    assert java_hash(b"\x01\xfe\x7f\x80") == 955199


def test_equal_keys_of_different_types_are_cached_separately() -> None:
    assert [assign(key, 16, 128) for key in (1, True, 1.0)] == [10, 9, subpartition_of(key_group(1.0, 128), 128, 16)]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (100, 256), (170, 256), (1000, 2048), (21845, 32768), (30000, 32768)],
)
def test_default_max_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert expected == default_max_parallelism(parallelism)


@given(st.text() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(), st.integers(1, 128))
def test_every_key_has_a_subpartition(key: Any, parallelism: int) -> None:
    assert 0 <= assign(key, parallelism, 128) < parallelism


def test_key_without_java_hash_is_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        java_hash({})
    with pytest.raises(OverflowError):
        java_hash(1 << 63)
