"""Addresses and partition ids as users write them."""

import pytest

from broker.client.shuffle.names import parse_address, partition_id
from protocol.shuffle.ids import ResultPartitionID

ID = ResultPartitionID.of(b"0123456789abcdef")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9094", ("127.0.0.1", 9094)),
        ("shuffle://broker.example:9094", ("broker.example", 9094)),
        ("shuffle://broker.example:9094?answer_timeout=1", ("broker.example", 9094)),
        ("[::1]:9094", ("::1", 9094)),
        (":9094", ("localhost", 9094)),
        (("127.0.0.1", 9094), ("127.0.0.1", 9094)),
    ],
)
def test_address_is_a_host_and_a_port(text: str | tuple[str, int], address: tuple[str, int]) -> None:
    assert address == parse_address(text)


@pytest.mark.parametrize("text", ["nowhere", "host:", "host:port", "host:65536", "host:-1"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no host:port"):
        parse_address(text)


@pytest.mark.parametrize("text", [ID, bytes(ID), bytes(ID).hex(), str(ID)])
def test_partition_has_four_forms(text: ResultPartitionID | bytes | str) -> None:
    assert ID == partition_id(text)


def test_name_stands_for_one_partition_everywhere() -> None:
    # The exact bytes: an upgrade that changed them would hide partitions from their names.
    expected = "8f6a788939ca730f226789b44f0f84dc" + 8 * "0" + "cd7180cb140215cc3afd97fe53e2d1d4" + 48 * "0"
    assert expected == partition_id("word-count").hex() == partition_id(" word-count ").hex()
    assert partition_id("a/0") != partition_id("a/1")
    assert (0, 0, 0) == (partition_id("a").number, partition_id("a").subtask, partition_id("a").attempt)


@pytest.mark.parametrize("text", ["", "a b", "a#1", "0" * 24, "0" * 119, "ä", "x" * 201, b"", b"0" * 59])
def test_invalid_id_is_refused(text: bytes | str) -> None:
    with pytest.raises(ValueError):
        partition_id(text)
