"""Kafka's hash of keys, against kafka-python's, which agrees with Kafka's Java clients."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from broker.client.kafka.record_encoder import by_key, murmur2


@given(st.binary(max_size=64))
def test_hash_is_kafkas(key: bytes) -> None:
    assert reference(key) & 0xFFFFFFFF == murmur2(key)


@given(st.binary(max_size=16), st.integers(1, 100))
def test_every_key_has_one_existing_partition(key: bytes, partitions: int) -> None:
    place = by_key(partitions)
    assert place(key) == place(key) == (reference(key) & 0x7FFFFFFF) % partitions
