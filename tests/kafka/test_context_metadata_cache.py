"""Cached Metadata answers: for one generation of the topics, and within the bound on bytes."""

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.context import BYTES_MAX, ENTRIES_MAX, Key, MetadataCache

KILOBYTE = bytes(1024)


def key(body: bytes) -> Key:
    return 9, ("localhost", 9092), body, frozenset()


def test_answer_is_kept_by_generation_and_request() -> None:
    cache = MetadataCache()
    cache.put(key(b"a"), 1, b"answer")
    assert cache.get(key(b"a"), 1) == b"answer"
    assert cache.get(key(b"a"), 2) is None
    assert cache.get(key(b"b"), 1) is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4096), st.integers(0, 6000)), max_size=200))
def test_requests_and_answers_stay_within_the_byte_bound(puts: list[tuple[int, int, int]]) -> None:
    cache = MetadataCache()
    kept: dict[bytes, int] = {}
    for number, body_size, kilobytes in puts:
        body = number.to_bytes(2, "big") + bytes(body_size)
        cache.put(key(body), 1, KILOBYTE * kilobytes)
        if len(body) + 1024 * kilobytes <= BYTES_MAX // 4:  # else an earlier answer stays
            kept[body] = len(body) + 1024 * kilobytes
        assert len(cache) <= ENTRIES_MAX
        really = sum(size for body, size in kept.items() if cache.get(key(body), 1) is not None)
        assert really == cache.size_bytes <= BYTES_MAX
