"""The credit of a receiver, for each row of its table."""

import pytest

from broker.shuffle.serving.view import Credit
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, IS_BUFFER, DataType

TYPES = [data_type for data_type in DataType if data_type is not DataType.NONE]
BARRIER = DataType.ALIGNED_CHECKPOINT_BARRIER


@pytest.mark.parametrize("data_type", TYPES)
def test_data_buffer_takes_a_credit_event_takes_none(data_type: DataType) -> None:
    credit = Credit(1)
    assert credit.may_send(data_type)
    assert credit.take(data_type)
    assert credit.credits == (0 if IS_BUFFER[data_type] else 1)
    assert credit.blocked == IS_BLOCKING_UPSTREAM[data_type]


@pytest.mark.parametrize("data_type", TYPES)
def test_without_credit_only_events_are_sent(data_type: DataType) -> None:
    credit = Credit(0)
    assert credit.may_send(data_type) == credit.take(data_type) == (not IS_BUFFER[data_type])
    assert credit.credits == 0


@pytest.mark.parametrize("data_type", TYPES)
def test_blocked_credit_grows_and_nothing_is_sent(data_type: DataType) -> None:
    credit = Credit(1)
    assert credit.take(BARRIER)
    credit.add(2)
    assert not credit.may_send(data_type)
    assert not credit.take(data_type)
    assert credit.credits == 3
    credit.resume()
    assert credit.take(data_type)


@pytest.mark.parametrize(("initial", "left"), [(0, 0), (2, 5)])
def test_initial_credit_of_0_drops_credit_on_resuming(initial: int, left: int) -> None:
    credit = Credit(initial)
    credit.add(5 - initial)
    credit.take(BARRIER)
    credit.resume()
    assert (credit.blocked, credit.credits) == (False, left)


def test_backlog_is_announced_only_without_initial_credit() -> None:
    credit = Credit(0)
    assert credit.announces_backlog
    credit.take(BARRIER)
    assert not credit.announces_backlog
    credit.resume()
    credit.add(1)
    assert not credit.announces_backlog
    credit.take(DataType.DATA_BUFFER)
    assert credit.announces_backlog
    other = Credit(1)
    other.take(DataType.DATA_BUFFER)
    assert not other.announces_backlog
