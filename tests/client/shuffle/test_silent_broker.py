"""A broker that answers nothing and closes nothing: a stopped process, or a machine without power. Every call has an end.

The times here are far shorter than those of a call with an unbounded wait, which would hang.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleAdmin, ShuffleWriter
from broker.client.shuffle.blocks import BlockReader
from broker.client.shuffle.errors import (
    ConnectionFailedError,
    PartitionNotFoundError,
    RemoteTransportError,
    ShuffleTimeoutError,
    TransportError,
)
from broker.client.shuffle.io_loop import Liveness, Verdict
from broker.client.shuffle.writing import broker_link
from protocol.shuffle.data_type import DataType
from tests.client.conftest import InThread
from tests.client.shuffle.reference_server import ReferenceServer
from tests.process.broker_process import BrokerProcess

# Even a busy machine answers in this time.
ANSWER_S, RECONNECT_S = 3.0, 1.0
_SILENT = rf"has not answered for {ANSWER_S:.0f} s"
# Only a hang would take this long.
FOR_EVER_S = 30


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        Path(tmp_path_factory.mktemp("broker")), "logging_level=warning", listener="shuffle://127.0.0.1:0"
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def goes_on(process: BrokerProcess) -> Iterator[None]:
    """The error of the failed call."""
    yield
    process.resume()


@pytest.fixture
def ends(in_thread: InThread) -> Callable[[Callable[[], object]], None]:
    """The call returns."""

    def check(call: Callable[[], object]) -> None:
        thread = in_thread(call)
        thread.join(FOR_EVER_S)
        assert not thread.is_alive(), "it hangs"

    return check


Ends = Callable[[Callable[[], object]], None]


def writer_to(address: str, partition: ResultPartitionID, **options: object) -> ShuffleWriter:
    times: dict[str, object] = {"answer_timeout": ANSWER_S, "reconnect_timeout": RECONNECT_S}
    return ShuffleWriter(address, partition, 1, "blocking", **(times | options))  # type: ignore[arg-type]


def test_opening_gives_up(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    def use() -> None:
        with pytest.raises(ConnectionFailedError, match=_SILENT), writer_to(address, partition):
            pass

    address = process.address
    with process.suspended():
        ends(use)


def test_committing_gives_up(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    writer = writer_to(process.address, partition)
    writer.open()
    writer.push(0, b"data")

    def use() -> None:
        with pytest.raises(TransportError):
            writer.commit()
        with pytest.raises(TransportError):
            writer.push(0, b"more")
        writer.close()

    with process.suspended():
        ends(use)


def test_pushing_gives_up(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    writer = writer_to(process.address, partition, window_bytes=10_000)
    writer.open()

    def push_all(payloads: list[bytes]) -> None:
        for payload in payloads:
            writer.push(0, payload)

    def use() -> None:
        with pytest.raises(TransportError):
            push_all([bytes(1000)] * 100)
        writer.fail("it was not to be")
        writer.close()

    with process.suspended():
        ends(use)


def test_timeout_of_the_caller_comes_first(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    patient = writer_to(process.address, partition, answer_timeout=FOR_EVER_S * 10, window_bytes=1500)
    patient.open()
    late = writer_to(process.address, partition.with_attempt(1), answer_timeout=FOR_EVER_S * 10)

    def use() -> None:
        with pytest.raises(ShuffleTimeoutError, match=r"was not opened within 0\.1 s"):
            late.open(timeout=0.1)
        patient.push(0, bytes(1000))
        with pytest.raises(ShuffleTimeoutError, match=r"did not acknowledge the 1000 bytes .*window_bytes=1500"):
            patient.push(0, bytes(1000), timeout=0.1)
        with pytest.raises(ShuffleTimeoutError, match=r"was not finished within 0\.1 s"):
            patient.commit(timeout=0.1)

    with process.suspended():
        ends(use)
    late.close()
    patient.close()


def test_broker_that_resumes_in_time_loses_nothing(process: BrokerProcess, partition: ResultPartitionID) -> None:
    with writer_to(process.address, partition, reconnect_timeout=FOR_EVER_S, window_bytes=1) as writer:
        writer.push(0, b"before")

        def meanwhile() -> None:
            # Long enough for the connection to be given up and restored, perhaps several times.
            for _ in range(2):
                writer.push(0, b"meanwhile", timeout=3 * ANSWER_S)

        with process.suspended(), pytest.raises(ShuffleTimeoutError):
            meanwhile()
        writer.push(0, b"after")
    with InputGate([(process.address, partition, 0)]) as gate:
        received = [bytes(data) for _, data in gate.buffers()]
    assert received in ([b"before", b"meanwhile", b"after"], [b"before", b"after"])


def test_reading_blocks_gives_up(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    with writer_to(process.address, partition) as writer:
        for _ in range(100):
            writer.push(0, bytes(100_000))

    def read() -> list[tuple[int, object]]:
        return list(
            BlockReader(
                [(process.address, partition, 0)], patience=RECONNECT_S, answer_timeout=ANSWER_S, buffer_size=100_000
            )
        )

    def use() -> None:
        with pytest.raises(RemoteTransportError, match="has not answered for"):
            read()

    with process.suspended():
        ends(use)


def test_block_reader_continues_with_a_resumed_broker(process: BrokerProcess, partition: ResultPartitionID) -> None:
    with writer_to(process.address, partition) as writer:
        for number in range(2000):
            writer.push(0, b"%d" % number * 500, DataType.DATA_BUFFER_WITH_CLEAR_END)
    received = []
    for _, block in BlockReader([(process.address, partition, 0)], answer_timeout=ANSWER_S, patience=FOR_EVER_S):
        received.append(bytes(block))
        if len(received) == 50:
            process.suspend()
            # Later than the reader gives up the connection.
            threading.Timer(2 * ANSWER_S, process.resume).start()
    assert [b"%d" % number * 500 for number in range(2000)] == received


def test_gate_waits_for_the_configured_time(process: BrokerProcess, partition: ResultPartitionID, ends: Ends) -> None:
    with (
        writer_to(process.address, partition) as writer,
        InputGate([(process.address, partition, 0)]) as patient,
        InputGate([(process.address, partition, 0)], answer_timeout=ANSWER_S, buffer_size=1000) as gate,
    ):
        assert writer.all_acknowledged

        def use() -> None:
            assert patient.poll(0.1) is None
            with pytest.raises(RemoteTransportError, match=_SILENT):
                gate.poll()
            assert patient.poll(0.1) is None

        with process.suspended():
            ends(use)


def test_questions_give_up(process: BrokerProcess, ends: Ends) -> None:
    def use() -> None:
        for _ in range(2):
            with ShuffleAdmin(process.address, timeout=0.2) as admin, pytest.raises(ShuffleTimeoutError):
                admin.partitions()

    with process.suspended():
        ends(use)


# -- an older broker ------------------------------------------------------------------------------------------------


def test_unacknowledged_writer_asks_the_broker(
    server: ReferenceServer, partition: ResultPartitionID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By opening again on the same connection, as any broker allows."""
    monkeypatch.setattr(broker_link, "_CHECK_S", 0.01)
    server.acknowledge = False
    with ShuffleWriter(server.address, partition, 1, "blocking", window_bytes=100) as writer:
        for number in range(10):
            writer.push(0, b"%d" % number * 60, timeout=FOR_EVER_S)
    entries = server.partitions[partition].subpartitions[0]
    assert [b"%d" % number * 60 for number in range(10)] == [entry[2] for entry in entries if entry[0].is_buffer]
    assert 1 == len({id(server.partitions[partition].connection)})
    assert 0 == server.resent


def test_held_back_writer_asks_the_broker(server: ReferenceServer, partition: ResultPartitionID) -> None:
    """A writer that waits for credit for longer than a broker may be silent keeps its connection."""
    server.credit, server.give_credit = 1, False
    with writer_to(server.address, partition, reconnect_timeout=0.0) as writer:
        writer.push(0, b"0")
        with pytest.raises(ShuffleTimeoutError):
            writer.push(0, b"1", timeout=2 * ANSWER_S)
        assert 1 == server.opens
        writer.fail("enough")


# -- the decisions --------------------------------------------------------------------------------------------------


def test_silence_counts_only_while_something_is_expected() -> None:
    liveness = Liveness(9.0, 0.0)
    assert Verdict.FINE is liveness.look(99.0, False)
    assert Verdict.FINE is liveness.look(100.0, False)
    assert Verdict.FINE is liveness.look(102.9, True)
    assert Verdict.ASK is liveness.look(103.0, True)
    assert Verdict.FINE is liveness.look(106.0, True)
    assert Verdict.FINE is liveness.look(108.9, True)
    assert Verdict.DEAD is liveness.look(109.0, True)
    liveness.heard(109.0)
    assert Verdict.FINE is liveness.look(111.0, True)
    assert Verdict.ASK is liveness.look(112.0, True)
    liveness.heard(112.1)
    assert Verdict.ASK is liveness.look(115.2, True)
    assert Verdict.FINE is liveness.look(119.0, False)
    assert Verdict.FINE is liveness.look(121.0, True)


def test_suspension_of_this_process_does_not_count() -> None:
    liveness = Liveness(9.0, 0.0)
    assert Verdict.FINE is liveness.look(2.0, True)
    assert Verdict.FINE is liveness.look(1000.0, True)
    assert Verdict.ASK is liveness.look(1001.0, True)
    assert Verdict.FINE is liveness.look(1004.0, True)
    assert Verdict.DEAD is liveness.look(1007.0, True)


def test_live_broker_may_have_nothing_to_send(partition: ResultPartitionID) -> None:
    """It waits for a partition for longer than a silent broker counts as alive."""
    with (
        Broker(shuffle_partition_request_timeout_ms=int(2000 * ANSWER_S)) as broker,
        pytest.raises(PartitionNotFoundError),
    ):
        list(BlockReader([(broker.shuffle_address, partition, 0)], answer_timeout=ANSWER_S, patience=0.0))
