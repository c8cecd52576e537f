from hypothesis import given

from protocol.pulsar.metadata import EARLIEST, LATEST, MessageId, read_message_id
from protocol.pulsar.pulsar_pb2 import MessageIdData
from tests.protocol.pulsar.strategies import message_ids


@given(message_ids)
def test_any_id_reads_and_is_written_again(data: MessageIdData) -> None:
    message_id = read_message_id(data)
    written = message_id.encode()
    assert (data.ledgerId, data.entryId, data.partition, data.batch_index) == (
        written.ledgerId,
        written.entryId,
        written.partition,
        written.batch_index,
    )
    assert message_id == read_message_id(written)


def test_ends_of_a_topic_have_their_own_ids() -> None:
    earliest = read_message_id(MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1))
    latest = read_message_id(MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1))
    assert (EARLIEST, LATEST) == (earliest, latest)
    assert earliest.is_earliest and not earliest.is_latest
    assert latest.is_latest and not latest.is_earliest
    first = MessageId(0, 0)
    assert not first.is_earliest and not first.is_latest
