from hypothesis import given

from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing, CommandPong, CommandSendReceipt, MessageIdData
from protocol.pulsar.receipts import DUPLICATE, PING, PONG, Receipts
from tests.protocol.pulsar.strategies import uint64s


@given(uint64s, uint64s, uint64s, uint64s, uint64s)
def test_a_receipt_is_the_bytes_that_protobuf_writes(
    producer_id: int, ledger_id: int, sequence_id: int, entry_id: int, highest: int
) -> None:
    receipt = CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=MessageIdData(ledgerId=ledger_id, entryId=entry_id),
        highest_sequence_id=highest,
    )
    expected = write_command(BaseCommand.Type.SEND_RECEIPT, receipt)
    assert expected == Receipts(producer_id, ledger_id).receipt(sequence_id, entry_id, highest)


def test_a_duplicate_has_minus_one_for_ledger_and_entry() -> None:
    assert DUPLICATE == 2**64 - 1


def test_ping_and_pong_are_the_bytes_that_protobuf_writes() -> None:
    assert write_command(BaseCommand.Type.PING, CommandPing()) == PING
    assert write_command(BaseCommand.Type.PONG, CommandPong()) == PONG
