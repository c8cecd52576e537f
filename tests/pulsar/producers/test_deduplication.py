"""Messages that come again, over a real socket, with the log as it is after a crash."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.embedded import Broker
from broker.pulsar.producers import deduplication as module
from broker.pulsar.producers.deduplication import Deduplication, highest_sequence_id
from tests.pulsar.wire import Type, Wire, send_frame

DUPLICATE = (2**64 - 1, 2**64 - 1)


def broker_of(path: Path, **settings: Any) -> Broker:
    return Broker(str(path), listeners=["pulsar://127.0.0.1:0"], pulsar_deduplication=True, **settings)


def send(wire: Wire, *frames: bytes) -> list[tuple[int, int, int]]:
    """Sequence id, ledger and entry of each receipt."""
    wire.raw(b"".join(frames))
    found = []
    for _ in frames:
        kind, receipt = wire.hear()
        assert kind == Type.SEND_RECEIPT, receipt
        found.append((receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId))
    return found


def produce(broker: Broker, name: str = "name") -> tuple[Wire, int]:
    wire = Wire(broker.address("pulsar"))
    return wire, wire.produce("t", producer_name=name).last_sequence_id


def test_duplicate_is_not_stored_and_answered_in_order(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        wire, last = produce(broker)
        assert -1 == last
        frames = [send_frame(number) for number in (0, 1, 1, 0, 2)]
        assert [(0, 1, 0), (1, 1, 1), (1, *DUPLICATE), (0, *DUPLICATE), (2, 1, 2)] == send(wire, *frames)
        other, last = produce(broker, "other")
        assert -1 == last
        assert [(0, 1, 3)] == send(other, send_frame(0, producer_name="other"))
        wire.close()
        other.close()


def test_a_batch_counts_to_its_last_message(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        wire, _ = produce(broker)
        batch = send_frame(0, bytes(100), batch=5, highest_sequence_id=4)
        assert [(0, 1, 0), (0, *DUPLICATE), (4, *DUPLICATE), (5, 1, 5)] == send(
            wire, batch, batch, send_frame(4), send_frame(5)
        )
        wire.close()


def test_chunked_message_counts_by_its_last_chunk(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        wire, _ = produce(broker)
        chunks = [send_frame(0, uuid="u", num_chunks_from_msg=3, chunk_id=number) for number in range(3)]
        assert [0, 1, 2] == [entry for _, _, entry in send(wire, *chunks)]
        assert [(0, *DUPLICATE)] == send(wire, chunks[2])
        wire.close()


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_sequence_ids_match_log_after_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_ENTRIES", every)
    crashed = tmp_path / "crashed"
    with broker_of(tmp_path / "data") as broker:
        wire, _ = produce(broker)
        send(wire, *[send_frame(number) for number in range(10)])
        send(wire, send_frame(10, bytes(100), batch=5, highest_sequence_id=14))
        chunks = [send_frame(15, uuid="u", num_chunks_from_msg=2, chunk_id=number) for number in range(2)]
        send(wire, chunks[0])
        shutil.copytree(tmp_path / "data", crashed)  # the files as kill -9 leaves them
        wire.close()
    with broker_of(crashed) as broker:
        wire, last = produce(broker)
        assert 14 == last
        found = send(wire, send_frame(9), send_frame(14), *chunks, send_frame(15))
        assert [(9, *DUPLICATE), (14, *DUPLICATE), (15, 1, 16), (15, 1, 17), (15, *DUPLICATE)] == found
        wire.close()


def test_sequence_ids_survive_stop_and_unloading(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        wire, _ = produce(broker)
        send(wire, send_frame(7))
        topics = broker.server.part("pulsar").context.topics  # type: ignore[union-attr]
        topics.unload(topics.loaded()[0])
        assert Type.CLOSE_PRODUCER == wire.hear()[0]
        again, last = produce(broker)
        assert 7 == last
        wire.close()
        again.close()
    with broker_of(tmp_path) as broker:
        wire, last = produce(broker)
        assert 7 == last
        wire.close()


def test_a_topic_that_is_made_again_knows_nothing(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        wire, _ = produce(broker)
        send(wire, send_frame(7))
        broker.server.kafka.logs.delete_topic("t")
        wire.close()
        wire, last = produce(broker)
        assert -1 == last
        wire.close()


def test_where_it_is_off_nothing_is_remembered(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        wire, _ = produce(broker)
        assert [(0, 1, 0), (0, 1, 1)] == send(wire, send_frame(0), send_frame(0))
        wire.close()
        wire, last = produce(broker)
        assert -1 == last
        wire.close()


class Store:
    log_end_offset = 0
    log_start_offset = 0


def test_bounded_table_forgets_longest_idle_producer() -> None:
    one = Deduplication(Store(), most_producers=2)  # type: ignore[arg-type]
    for name in ("a", "b", "a", "c"):
        one.end(one.begin(), [(name, 5)])
    assert [5, -1, 5] == [one.last(name) for name in "abc"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5))), st.lists(st.booleans()))
def test_a_snapshot_lacks_nothing_before_its_offset(sent: list[tuple[str, int]], before: list[bool]) -> None:
    store = Store()
    one = Deduplication(store)  # type: ignore[arg-type]
    log: list[tuple[str, int]] = []
    pending: list[tuple[int, tuple[str, int]]] = []
    late: Callable[[int], bool] = lambda number: number < len(before) and before[number]  # noqa: E731
    for number, entry in enumerate(sent):
        token = one.begin()
        log.append(entry)
        store.log_end_offset = len(log)
        if late(number):
            pending.append((token, entry))
        else:
            one.end(token, [entry])
    state = one.snapshot()
    restored = Deduplication(store)  # type: ignore[arg-type]
    restored.replay = lambda offset: [restored._note(*entry) for entry in log[offset:]]  # type: ignore
    restored.restore(state)
    expected = {name: max(highest for other, highest in log if other == name) for name, _ in log}
    assert expected == {name: restored.last(name) for name, _ in log}


def test_sequence_ids_are_signed_as_in_java() -> None:
    assert -1 == highest_sequence_id(2**64 - 1, 2**64 - 1)
    assert 5 == highest_sequence_id(5, 0)
