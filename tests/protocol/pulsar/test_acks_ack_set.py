import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pulsar.acks import all_bits, bits_from_words, words_from_bits

sets = st.sets(st.integers(0, 300))


@given(sets)
def test_a_set_becomes_words_and_a_set_again(members: set[int]) -> None:
    bits = sum(1 << member for member in members)
    words = words_from_bits(bits)
    assert members == {64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1}
    assert bits == bits_from_words(words, 301)


@given(sets.filter(bool))
def test_last_word_is_nonzero_and_words_are_signed(members: set[int]) -> None:
    words = words_from_bits(sum(1 << member for member in members))
    assert words[-1] != 0
    assert all(-(2**63) <= word < 2**63 for word in words)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 200))
def test_words_never_make_set_larger_than_batch(words: list[int], messages: int) -> None:
    assert bits_from_words(words, messages) <= all_bits(messages)


@pytest.mark.parametrize(
    ("words", "messages", "expected"),
    [([], 5, 0), ([-1], 5, 0b11111), ([-1], 64, 2**64 - 1), ([0, 1], 65, 2**64), ([-1] * 10**6, 3, 7), ([6, 0], 3, 6)],
)
def test_missing_words_are_zero_and_excess_bits_dropped(words: list[int], messages: int, expected: int) -> None:
    assert expected == bits_from_words(words, messages)
