"""Share sessions: the table of the docstring, and the bounds."""

import re

import pytest

from broker.errors import RequestError
from broker.kafka.share import share_sessions
from broker.kafka.share.share_sessions import CONNECTION_MAX, PARTITIONS_MAX, ShareSessions, next_epoch
from protocol.kafka.errors import ErrorCode

ROWS = re.findall(
    r"^\| ([a-z0-9 -]+) \| ([a-z]+) \| ([A-Z_]+) \| ([^|]+) \|$", share_sessions.__doc__ or "", re.MULTILINE
)
EPOCHS = {"0": 0, "-1": -1, "its own": 5, "any other": 7}


def handle(sessions: ShareSessions, epoch: int) -> str:
    """As ShareFetch does it."""
    try:
        if epoch == 0:
            sessions.open("g", "m", "connection")
        else:
            session = sessions.use("g", "m", epoch)
            if epoch == -1:
                sessions.close(session)
    except RequestError as error:
        return ErrorCode(error.code).name.upper()
    return "NONE"


@pytest.mark.parametrize(("epoch", "session", "answer", "after"), ROWS)
def test_every_request_gets_the_answer_of_its_row(epoch: str, session: str, answer: str, after: str) -> None:
    for exists in {"any": (False, True), "none": (False,), "one": (True,)}[session]:
        sessions = ShareSessions()
        if exists:
            sessions.open("g", "m", "connection")[0].epoch = 5
        assert answer == handle(sessions, EPOCHS[epoch])
        session_now = sessions.of_member("g", "m")
        expected = {
            "is new, with the epoch 1": 1,
            "is closed": None,
            "has the next epoch": 6,
            "stays": 5,
            "-": None,
        }[after]
        assert expected == (None if session_now is None else session_now.epoch)


def test_table_has_all_rows() -> None:
    assert 6 == len(ROWS)


def test_after_the_last_epoch_comes_1() -> None:
    assert [2, 1] == [next_epoch(1), next_epoch(2**31 - 1)]


def test_there_are_only_so_many_sessions() -> None:
    sessions = ShareSessions(max_sessions=2)
    sessions.open("g", "a", 1)
    first, _ = sessions.open("g", "b", 1)
    with pytest.raises(RequestError) as caught:
        sessions.open("g", "c", 1)
    assert ErrorCode.share_session_limit_reached == caught.value.code
    again, old = sessions.open("g", "b", 2)
    assert old is first and first.closed and not again.closed
    assert sessions.close(again)
    assert not sessions.close(again), "once is enough"
    sessions.open("g", "c", 1)


def test_connection_has_only_so_many_sessions() -> None:
    sessions = ShareSessions()
    opened = [sessions.open("g", f"m{number}", 1)[0] for number in range(CONNECTION_MAX)]
    there, _ = sessions.open("g", "there", 2)
    for member in ("new", "there"):
        with pytest.raises(RequestError) as caught:
            sessions.open("g", member, 1)
        assert ErrorCode.share_session_limit_reached == caught.value.code
    assert not there.closed
    _, old = sessions.open("g", "m0", 1)
    assert opened[0] is old
    sessions.close(opened[1])
    assert there is sessions.open("g", "there", 1)[1]


def test_session_belongs_to_its_opening_connection() -> None:
    sessions = ShareSessions()
    _, _ = sessions.open("g", "m", 1)
    second, _ = sessions.open("g", "m", 2)
    other, _ = sessions.open("g", "n", 1)
    assert [other] == sessions.of_connection(1)
    assert [second] == sessions.of_connection(2)
    sessions.close(second)
    assert not sessions.has_any(2)


def test_session_has_only_so_many_partitions() -> None:
    sessions = ShareSessions()
    session, _ = sessions.open("g", "m", 1)
    with pytest.raises(RequestError) as caught:
        sessions.make_room(session, PARTITIONS_MAX + 1)
    assert ErrorCode.invalid_request == caught.value.code
    for number in range(share_sessions.ALL_PARTITIONS_MAX // PARTITIONS_MAX):
        sessions.make_room(sessions.open("g", f"m{number}", 1)[0], PARTITIONS_MAX)
    with pytest.raises(RequestError) as caught:
        sessions.make_room(session, 1)
    assert ErrorCode.share_session_limit_reached == caught.value.code


def test_session_that_was_closed_gets_no_room() -> None:
    """A request may close it while another adds partitions: nobody would give them back."""
    sessions = ShareSessions()
    session, _ = sessions.open("g", "m", 1)
    sessions.make_room(session, 5)
    sessions.give_back(session)
    assert 4 == sessions.partitions.taken
    sessions.close(session)
    assert 0 == sessions.partitions.taken
    with pytest.raises(RequestError) as caught:
        sessions.make_room(session, 1)
    assert ErrorCode.share_session_not_found == caught.value.code
    sessions.give_back(session)
    assert 0 == sessions.partitions.taken


def test_concurrent_requests_for_same_partitions_leak_no_room() -> None:
    sessions = ShareSessions()
    session, _ = sessions.open("g", "m", 1)
    for _ in range(2):
        sessions.make_room(session, 5)
    session.refused.update({(b"topic", number): None for number in range(5)})
    sessions.open("g", "m", 2)
    assert 0 == sessions.partitions.taken
