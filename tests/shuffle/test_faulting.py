from collections.abc import Iterator
from typing import Any

import pytest

from broker.client import Broker, InputGate, ShuffleWriter
from broker.client.shuffle.errors import PartitionNotFoundError, PartitionReleasedError, RemoteTransportError
from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Entity
from broker.shuffle.assembly import ShufflePart
from protocol.shuffle.buffer_response import BufferResponse
from protocol.shuffle.errors import PARTITION_NOT_FOUND_EXCEPTION, ErrorResponse
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.messages import encode_close_request
from tests.shuffle.harness import BLOCKING, Client, new_id
from tests.waiting import wait_for

NAME = "orders"
ID = ResultPartitionID.from_words(NAME)


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"shuffle_partition_request_timeout_ms": 200}  # how long a reader waits for a partition
    with Broker(listeners=["shuffle://127.0.0.1:0"], **settings) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    host, port = broker.address("shuffle").rsplit(":", 1)
    with Client((host, int(port))) as client:
        yield client


def write(broker: Broker, *records: bytes, name: str = NAME) -> None:
    """Each record in a buffer of its own."""
    with ShuffleWriter(broker.shuffle_address, name, 1, "blocking") as writer:
        for record in records:
            writer.push(0, record)


def read(gate: InputGate) -> list[bytes]:
    return [bytes(each.data) for each in gate if each.data is not None]


def payloads(messages: list[Any]) -> list[bytes]:
    return [bytes(each.payload) for each in messages if isinstance(each, BufferResponse)]


# -- which messages ----------------------------------------------------------------------------------------------------


def test_messages_say_what_they_are_about(broker: Broker) -> None:
    seen = broker.faults.add("observe", partition_id=NAME, count=None)
    of_number = broker.faults.add("observe", api="OpenPartition", partition=0)
    write(broker, b"one", b"two")
    with InputGate([(broker.shuffle_address, NAME, 0)]) as gate:
        assert [b"one", b"two"] == read(gate)
    entity = Entity(partition=0, partition_id=ID.hex())
    assert {("shuffle", "User:ANONYMOUS", (entity,))} == {(p.protocol, p.principal, p.entities) for p in seen.passed}
    counts = {api: sum(each.api == api for each in seen.passed) for api in ("PARTITION_REQUEST", "PUSH_BUFFER")}
    assert {"PARTITION_REQUEST": 1, "PUSH_BUFFER": 4} == counts  # two buffers and two events
    assert {"OPEN_PARTITION", "FINISH_PARTITION", "BUFFER_RESPONSE"} < {each.api for each in seen.passed}
    assert 1 == of_number.hits


def test_messages_that_arrive_together_are_met_one_by_one(broker: Broker, client: Client) -> None:
    writer = client.open(partition := new_id(), kind=BLOCKING)
    pushes = broker.faults.add("observe", api="PUSH_BUFFER", partition_id=partition.hex(), count=None)
    others = broker.faults.add("observe", partition_id=new_id().hex(), count=None)
    credits = broker.faults.add("observe", api="ADD_CREDIT", partition_id=str(partition), count=None)
    client.finish(writer.push(*[b"x"] * 20).end())
    receiver = client.request(partition, credit=1)
    for _ in range(25):
        client.add_credit(receiver)
    assert 22 == len(client.take(22))
    assert (22, 0) == (pushes.hits, others.hits)
    wait_for(lambda: credits.hits == 25)


def test_nothing_is_asked_without_a_fault(broker: Broker) -> None:
    part = broker.server.part("shuffle")
    assert isinstance(part, ShufflePart)
    assert part._faulting is not None
    with broker.faults.add("observe"):
        assert part._faulting.faults is broker.faults
    assert part._faulting.faults is None


# -- lost connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["PUSH_BUFFER", "FINISH_PARTITION"])
def test_a_writer_that_loses_its_connection_writes_everything_once(broker: Broker, api: str) -> None:
    fault = broker.faults.add("reset", api=api, partition_id=NAME)
    records = [b"%d" % number for number in range(100)]
    write(broker, *records)
    assert 1 == fault.hits
    with InputGate([(broker.shuffle_address, NAME, 0)]) as gate:
        assert records == read(gate)


def test_a_writer_loses_its_connection_at_the_third_buffer(broker: Broker, client: Client) -> None:
    writer = client.open(new_id(), kind=BLOCKING)
    broker.faults.add("reset", api="PUSH_BUFFER", skip=2)
    writer.push(*[b"x"] * 10)
    client.closed()
    part = broker.server.part("shuffle")
    assert isinstance(part, ShufflePart)
    assert [2] == [partition.holdings.buffers for partition in part.partitions.present()]


def test_a_reader_loses_its_connection_after_the_second_buffer(broker: Broker, client: Client) -> None:
    write(broker, b"one", b"two", b"three")
    fault = broker.faults.add("reset", api="BUFFER_RESPONSE", partition_id=NAME, skip=1)
    client.request(ID, credit=10)
    assert [b"one", b"two"] == payloads(client.closed())
    assert 1 == fault.hits
    with (
        broker.faults.add("reset", api="BUFFER_RESPONSE"),
        InputGate([(broker.shuffle_address, NAME, 0)]) as gate,
        pytest.raises(RemoteTransportError),
    ):
        read(gate)
    with InputGate([(broker.shuffle_address, NAME, 0)]) as gate:
        assert 3 == len(read(gate))


def test_a_reader_loses_its_connection_at_its_request(broker: Broker, client: Client) -> None:
    write(broker, b"one")
    broker.faults.add("reset", api="PartitionRequest")
    client.request(ID, credit=10)
    assert [] == client.closed()


# -- delays ------------------------------------------------------------------------------------------------------------


def test_late_messages_keep_their_order(broker: Broker, client: Client) -> None:
    expected = [
        bytes([number]) * 1000 for number in range(40)
    ]  # long enough that the received bytes' memory is used again
    writer = client.open(partition := new_id(), kind=BLOCKING)
    late = [broker.faults.add("delay", api="PUSH_BUFFER", skip=skip, delay_ms=100) for skip in (2, 3)]
    writer.push(*expected[:5])
    late[0].wait(timeout=60)
    writer.push(*expected[5:])
    client.finish(writer.end())
    assert [1, 1] == [each.hits for each in late]
    client.request(partition, credit=50)
    assert expected == payloads(client.take(40))


def test_nothing_overtakes_a_late_message(broker: Broker, client: Client) -> None:
    writer = client.open(new_id(), kind=BLOCKING)
    late = broker.faults.add("delay", api="PUSH_BUFFER", delay_ms=300)
    closes = broker.faults.add("observe", api="CLOSE_REQUEST")
    writer.push(b"0").client.send(encode_close_request())
    late.wait(timeout=60)
    part = broker.server.part("shuffle")
    assert isinstance(part, ShufflePart)
    [partition] = part.partitions.present()
    closes.wait(timeout=60)
    assert 1 == partition.holdings.buffers
    client.closed()


def test_late_buffers_keep_their_order(broker: Broker, client: Client) -> None:
    records = [b"%d" % number for number in range(20)]
    write(broker, *records)
    late = broker.faults.add("delay", api="BUFFER_RESPONSE", partition_id=NAME, count=3, skip=4, delay_ms=50)
    with InputGate([(broker.shuffle_address, NAME, 0)]) as gate:
        assert records == read(gate)
    assert 3 == late.hits


def test_nothing_overtakes_a_late_buffer(broker: Broker, client: Client) -> None:
    write(broker, b"0", b"1", b"2", b"3")
    late = broker.faults.add("delay", api="BUFFER_RESPONSE", skip=1, delay_ms=300)
    receiver = client.request(ID, credit=2)
    late.wait(timeout=60)
    client.add_credit(receiver, 2)  # upon which the broker would send more
    assert [0, 1, 2, 3] == [each.sequence for each in client.take(4)]


# -- released partitions -----------------------------------------------------------------------------------------------


def test_a_released_partition_is_not_found(broker: Broker) -> None:
    write(broker, b"one")
    broker.faults.trigger("partition_released", partition_id=NAME)
    with (
        InputGate([(broker.shuffle_address, NAME, 0)], partition_wait=0.5) as gate,
        pytest.raises(PartitionNotFoundError),
    ):
        read(gate)
    with pytest.raises(BrokerError, match="There is no partition"):
        broker.faults.trigger("partition_released", partition_id=NAME)


def test_a_partition_is_released_after_the_second_buffer(broker: Broker, client: Client) -> None:
    write(broker, b"one", b"two", b"three")
    broker.faults.add("partition_released", api="BUFFER_RESPONSE", partition_id=NAME, skip=1)
    client.request(ID, credit=10)
    assert [b"one", b"two"] == payloads(client.take(2))
    error = client.next(ErrorResponse)
    assert PARTITION_NOT_FOUND_EXCEPTION == error.class_name


def test_a_partition_is_released_under_its_writer(broker: Broker) -> None:
    broker.faults.add("partition_released", api="PUSH_BUFFER", skip=1)
    with pytest.raises(PartitionReleasedError):
        write(broker, *[b"x"] * 100)


def test_a_message_may_release_another_partition(broker: Broker, client: Client) -> None:
    write(broker, b"one")
    broker.faults.add("partition_released", api="CLOSE_REQUEST", partition_id=NAME)
    client.send(encode_close_request()).closed()
    part = broker.server.part("shuffle")
    assert isinstance(part, ShufflePart)
    assert () == part.partitions.present()


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "observe", "partition_id": "f" * 119}, "is no partition: write a name"),
        ({"kind": "lost", "api": "PUSH_BUFFER"}, "For shuffle: There is no kind 'lost'"),
        ({"kind": "partition_released", "api": "CLOSE_REQUEST"}, "no CLOSE_REQUEST request names one"),
        ({"kind": "observe", "api": "PartitionReqest"}, "Did you mean PARTITION_REQUEST?"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(broker: Broker, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        broker.faults.add(**fields)
    assert says in str(error.value)
