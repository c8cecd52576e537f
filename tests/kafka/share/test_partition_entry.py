"""Wake-ups of fetching sessions: queues, rounds, locks that end, and sessions that go away."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.kafka.share.partition_entry import PartitionEntry, ignore
from broker.kafka.share.share_partition import RENEW
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from tests.kafka.share.stage import Stage, StageMember

STEPS = st.tuples(st.sampled_from(["write", "fetch", "wait", "ack", "release", "leave"]), st.integers(0, 2))


def test_drained_share_partition_leaves_the_queues(stage: Stage) -> None:
    stage.write(3)
    member = stage.member("m", 0, 1)
    assert [(0, 2, 1)] == member.fetch()
    assert [] == member.fetch()
    assert not member.session.ready
    stage.write(1, 1)
    assert [member.link(1)] == list(member.session.ready)
    stage.write(1, 1)
    assert [member.link(1)] == list(member.session.ready), "once is enough"
    assert [(0, 1, 1)] == member.fetch()


def test_each_append_wakes_the_next_session(stage: Stage) -> None:
    members = [stage.member(name) for name in "abc"]
    for member in members:
        assert [] == member.fetch()
        member.wait()
    for turn in range(6):
        stage.write()
        woken = [number for number, member in enumerate(members) if member.woken()]
        assert [turn % 3] == woken
        assert 1 == len(members[woken[0]].fetch())
        assert [] == members[woken[0]].fetch()
        for member in members:
            if member.session.ready:
                member.session.ready.popleft().entry.looked_at(member.link())
        members[woken[0]].wait()


def test_next_session_is_woken_if_records_remain(stage: Stage) -> None:
    members = [stage.member(name) for name in "abc"]
    for member in members:
        member.fetch()
        member.wait()
    stage.write(5)
    assert [True, False, False] == [member.woken() for member in members]
    members[0].fetch(2)
    assert [False, True, False] == [member.woken() for member in members]
    members[1].fetch(3)
    assert [False, False, False] == [member.woken() for member in members]


def test_next_session_is_woken_if_first_goes_away(stage: Stage) -> None:
    first, second = stage.member("a"), stage.member("b")
    for member in (first, second):
        member.fetch()
        member.wait()
    stage.write()
    assert (True, False) == (first.woken(), second.woken())
    stage.share.close_session(first.session)
    assert second.woken()


def test_session_wanting_more_is_asked_again_with_more(stage: Stage) -> None:
    much, little = stage.member("a"), stage.member("b")
    for member in (much, little):
        member.fetch()
        member.wait()
    stage.write()
    assert much.woken()
    link = much.session.ready.popleft()
    link.entry.unwanted(link, 1)
    much.wait()
    link.entry.wake_next()
    assert little.woken()
    little.fetch()
    stage.write()
    assert much.woken()


def test_older_records_wake_sessions_that_missed_them(stage: Stage) -> None:
    """The log grew between a look and the end of the round."""
    much = stage.member("a")
    much.fetch()
    much.wait()
    stage.write()
    assert much.woken()
    link = much.session.ready.popleft()
    stage.write()
    link.entry.unwanted(link, 1)
    much.wait()
    link.entry.wake_next()
    assert much.woken()


def test_records_before_the_wait_are_not_missed(stage: Stage) -> None:
    """Others have taken everything when it comes, and the session has looked and does not wait yet."""
    much, little = stage.member("a"), stage.member("b")
    much.fetch()
    stage.write()
    link = much.session.ready.popleft()
    link.entry.unwanted(link, stage.log().high_watermark)
    assert [(0, 0, 1)] == little.fetch()
    assert [] == little.fetch()
    stage.write()
    much.wait()
    link.entry.wake_next()
    assert much.woken()
    link = much.session.ready.popleft()
    link.entry.unwanted(link, stage.log().high_watermark)
    much.wait()
    link.entry.wake_next()
    assert not much.woken(), "there is nothing new"
    stage.write()
    assert much.woken()


def test_records_whose_locks_end_wake_the_others(stage: Stage) -> None:
    stage.write(3)
    holder, other = stage.member("a"), stage.member("b")
    holder.fetch()
    other.fetch()
    other.wait()
    stage.wait(9_000)
    assert not other.woken()
    batch = AcknowledgementBatch(1, 1, bytes([RENEW]))
    assert not holder.entry().acknowledge("a", [batch], ignore, may_renew=True), "there is nothing to store"
    stage.wait(1_500)
    assert other.woken()
    assert [(0, 0, 2), (2, 2, 2)] == other.fetch()
    other.wait()
    stage.wait(9_000)
    assert other.woken()
    assert [(1, 1, 2)] == other.fetch()


def test_log_start_may_pass_drained_share_partition(stage: Stage) -> None:
    stage.write(5)
    member, other = stage.member("a"), stage.member("b")
    member.fetch(3)
    other.fetch()
    stage.log().trimming.delete_records(5)
    stage.write(1)
    assert [(5, 5, 1)] == other.fetch()
    assert 5 == member.entry().partition.start  # type: ignore[union-attr]


@settings(deadline=None, max_examples=40)
@given(st.lists(STEPS, max_size=60))
def test_waiting_session_is_woken_in_any_order(tmp_path_factory: object, steps: list[tuple[str, int]]) -> None:
    """If records can be acquired, a session has the partition in its queue; if all such sessions wait, one was woken."""
    stage = Stage(tmp_path_factory.mktemp("stage"), 1)  # type: ignore[attr-defined]
    try:
        members: list[StageMember] = [stage.member(name) for name in "abc"]
        held: list[list[tuple[int, int]]] = [[], [], []]
        for step, number in steps:
            member = members[number]
            if step == "write":
                stage.write(2)
            elif step == "fetch":
                member.waiting.woken.clear()
                member.session.waiter = None
                held[number] += [(first, last) for first, last, _ in member.fetch(2)]
            elif step == "wait":
                if not member.session.ready:
                    member.wait()
            elif step == "leave":
                stage.share.close_session(member.session)
                members[number] = stage.member("abc"[number])
                held[number] = []
            elif held[number]:
                first, last = held[number].pop(0)
                member.acknowledge(first, last, 1 if step == "ack" else 2)
                stage.run()
            entry = members[0].entry()
            partition = entry.partition
            assert partition is not None
            if partition.can_acquire(stage.log().high_watermark):
                assert all(member.link() in member.session.ready for member in members)
                waiting = [member for member in members if member.session.waiter is not None]
                if len(waiting) == len(members):
                    assert any(member.waiting.woken for member in waiting)
    finally:
        stage.storage.stop()


def test_append_between_look_and_mark_is_not_missed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The appending thread sees that the share partition is not drained yet, and wakes nobody."""
    member = stage.member()
    has_more = PartitionEntry._has_more
    looks: list[bool] = []

    def looked(entry: PartitionEntry) -> bool:
        answer = has_more(entry)
        looks.append(answer)
        if len(looks) == 1:
            stage.write()
        return answer

    monkeypatch.setattr(PartitionEntry, "_has_more", looked)
    assert [] == member.fetch()
    assert [False, True] == looks
    assert [(0, 0, 1)] == member.fetch()
