"""The kernel's random bytes."""

from broker.runtime.entropy import SystemEntropy


def test_requested_number_of_bytes_differ_each_time() -> None:
    entropy = SystemEntropy()
    assert entropy.bytes(0) == b""
    drawn = {entropy.bytes(16) for _ in range(100)}
    assert len(drawn) == 100
    assert {len(each) for each in drawn} == {16}


def test_uuids_are_random_ones() -> None:
    drawn = {SystemEntropy().uuid() for _ in range(100)}
    assert len(drawn) == 100
    assert {each.version for each in drawn} == {4}
