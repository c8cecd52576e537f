"""Records in flight, event by event, against the table of the docstring, and against a model."""

from broker.delivery.in_flight import InFlight, Owner


def test_a_record_goes_out_comes_back_and_is_acknowledged() -> None:
    table, owner, other = InFlight(), Owner(), Owner()
    record = table.acquire(owner, 5, 3)
    assert (3, 3) == (owner.unacked, table.unacked)
    assert table.fail(record)
    assert (0, 0, 1) == (owner.unacked, table.unacked, record.failures)
    assert record is table.acquire(other, 5, 3)
    table.lower(record, 2)
    assert (1, 1) == (other.unacked, table.unacked)
    assert other is table.remove(record)
    assert (0, 0, {}) == (other.unacked, table.unacked, table.records)
