"""Who gets the chunks of a message."""

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.round_robin import Chunks
from broker.pulsar.entry import Chunk

A, B = Consumer("a", "a"), Consumer("b", "b")


def test_chunks_go_to_consumer_of_the_first_chunk() -> None:
    chunks = Chunks()
    assert chunks.consumer(Chunk(b"x", 0, 3)) is None
    chunks.sent(Chunk(b"x", 0, 3), A)
    chunks.sent(Chunk(b"y", 0, 3), B)
    assert chunks.consumer(Chunk(b"x", 1, 3)) is A
    chunks.sent(Chunk(b"x", 2, 3), A)
    assert chunks.consumer(Chunk(b"x", 1, 3)) is None
    assert chunks.consumer(Chunk(b"y", 1, 3)) is B


def test_oldest_unfinished_chunked_message_is_evicted() -> None:
    chunks = Chunks(most=2)
    for uuid in (b"x", b"y", b"z"):
        chunks.sent(Chunk(uuid, 0, 2), A)
    assert [None, A, A] == [chunks.consumer(Chunk(uuid, 1, 2)) for uuid in (b"x", b"y", b"z")]


def test_a_repeated_chunk_pushes_nobody_out() -> None:
    chunks = Chunks(most=2)
    for uuid in (b"x", b"y", b"y", b"y"):
        chunks.sent(Chunk(uuid, 0, 2), B)
    assert chunks.consumer(Chunk(b"x", 1, 2)) is B
