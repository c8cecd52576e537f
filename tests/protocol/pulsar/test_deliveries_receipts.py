from hypothesis import given
from hypothesis import strategies as st

from protocol.pulsar.deliveries import DUPLICATE, PING, PONG, Receipts
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandPing, CommandPong, CommandSendReceipt, MessageIdData
from tests.protocol.pulsar.strategies import uint64s

near = st.integers(0, 400)


@given(uint64s, uint64s, st.lists(st.tuples(uint64s | near, uint64s | near, uint64s | st.just(0)), max_size=5))
def test_receipts_are_the_bytes_that_protobuf_writes(
    producer_id: int, ledger_id: int, of: list[tuple[int, int, int]]
) -> None:
    expected = [
        write_command(
            BaseCommand.Type.SEND_RECEIPT,
            CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=MessageIdData(ledgerId=ledger_id, entryId=entry_id),
                highest_sequence_id=highest,
            ),
        )
        for sequence_id, entry_id, highest in of
    ]
    assert b"".join(expected) == Receipts(producer_id, ledger_id).receipts(of)


def test_duplicate_has_minus_one_for_ledger_and_entry() -> None:
    assert DUPLICATE == 2**64 - 1


def test_ping_and_pong_equal_protobuf_encoding() -> None:
    assert write_command(BaseCommand.Type.PING, CommandPing()) == PING
    assert write_command(BaseCommand.Type.PONG, CommandPong()) == PONG
