"""Cursors in the catalogue: what is answered is durable, and what could not be written is tried again."""

from typing import Any

import pytest

from broker.errors import StorageError
from broker.pulsar.dispatch.dispatcher import SubType
from tests.pulsar.subscriptions.stage import Member, Stage


def subscribed(stage: Stage, name: str = "s", **fields: Any) -> Member:
    member = stage.client().subscribe(name, **fields)
    member.flow(1000)
    stage.run()
    return member


def saved(stage: Stage, member: Member) -> list[Any]:
    answers: list[Any] = []
    member.subscription.saving.save(answers.append)
    return answers


def restarted(stage: Stage, name: str = "s", kind: int = SubType.Exclusive) -> list[int]:
    """What comes after the broker was killed: only the catalogue and the log are left."""
    stage.start()
    member = stage.client().subscribe(name, start=None, kind=kind)
    member.flow(1000)
    stage.run()
    return member.offsets()


def test_answer_means_state_is_in_catalogue(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    answers = saved(stage, member)
    assert [] == answers  # no answer comes before the writer's thread has written
    stage.run()
    assert [None] == answers
    member.ack(1)  # this acknowledgement is not answered
    assert [1, 3] == restarted(stage)


def test_unanswered_acknowledgements_are_written_within_a_second(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    stage.wait(1_000)
    assert [1, 3] == restarted(stage)


def test_many_acknowledgements_are_one_row(stage: Stage) -> None:
    stage.produce(200)
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    rows: list[int] = []
    save_cursors = stage.catalogue.save_cursors

    def count(changed: Any) -> None:
        changed = list(changed)
        rows.append(len(changed))
        save_cursors(changed)

    stage.catalogue.save_cursors = count  # type: ignore[method-assign]
    answers = []
    for number in range(200):
        member.ack(number)
        answers.append(saved(stage, member))
    stage.run()
    assert [[None]] * 200 == answers
    assert [1] == rows


def test_acknowledgements_during_write_are_written_next(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0)
    save_cursors = stage.catalogue.save_cursors
    late: list[Any] = []

    def acknowledge_meanwhile(rows: Any) -> None:
        stage.catalogue.save_cursors = save_cursors  # type: ignore[method-assign]
        member.ack(1)
        late.append(saved(stage, member))
        save_cursors(rows)

    stage.catalogue.save_cursors = acknowledge_meanwhile  # type: ignore[method-assign]
    saved(stage, member)
    stage.run()
    assert [[None]] == late
    assert [2, 3] == restarted(stage)


def test_failing_catalogue_is_reported_and_retried(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.catalogue.broken = True
    member.ack(0, 1)
    (answers,) = [saved(stage, member)]
    stage.run()
    assert [StorageError] == [type(answer) for answer in answers]
    stage.wait(3_000)
    stage.catalogue.broken = False
    stage.wait(1_000)
    assert [2, 3] == restarted(stage)


def test_unwritable_cursor_does_not_delay_others(stage: Stage) -> None:
    stage.produce(2)
    members = [subscribed(stage, name) for name in "abc"]
    for member in members:
        member.ack(0)
    members[1].subscription.cursor.set_properties({"x" * 70_000: ""})
    answers = [saved(stage, member) for member in members]
    stage.run()
    assert [[None], [StorageError], [None]] == [[type(one) if one else None for one in each] for each in answers]
    stage.start()
    for name, expected in (("a", [1]), ("c", [1])):
        member = stage.client().subscribe(name, start=None)
        member.flow(10)
        stage.run()
        assert expected == member.offsets()


def test_everything_is_written_when_the_broker_stops(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    stage.stop()
    assert [1, 3] == restarted(stage)


def test_a_topic_that_is_unloaded_leaves_its_cursors(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    answers = saved(stage, member)
    member.subscription.close()
    stage.run()
    assert [None] == answers
    assert [1, 3] == restarted(stage)


def test_unloaded_topic_resumes_from_unsaved_cursor(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.catalogue.broken = True
    member.ack(0, 2)
    member.subscription.close()
    stage.run()
    stage.topic = stage.load(stage.log)
    again = stage.client().subscribe(start=None)
    again.flow(10)
    stage.run()
    assert [1, 3] == again.offsets()
    again.ack(1)
    stage.wait(2_000)
    stage.catalogue.broken = False
    stage.wait(2_000)
    assert [3] == restarted(stage)


def test_request_after_unloading_awaits_durable_last_state(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    member.subscription.close()
    answers = saved(stage, member)
    assert [] == answers
    assert stage.run_writer()
    assert [None] == answers == saved(stage, member)
    assert [1, 3] == restarted(stage)


def test_pending_request_at_unloading_awaits_last_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    answers = saved(stage, member)
    rows = stage.subscriptions.store.rows
    take = rows.take_waiting

    def unloaded_meanwhile(stored: Any) -> Any:
        waiting = take(stored)
        member.subscription.close()
        return waiting

    monkeypatch.setattr(rows, "take_waiting", unloaded_meanwhile)
    assert stage.run_writer()
    monkeypatch.undo()
    assert [] == answers  # the catalogue has nothing yet
    stage.run()
    assert [None] == answers
    assert [1, 3] == restarted(stage)


def test_unwritable_last_state_is_reported_to_waiters(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0, 2)
    answers = saved(stage, member)
    stage.catalogue.broken = True
    member.subscription.close()
    stage.run()
    late = saved(stage, member)
    assert [StorageError, StorageError] == [type(answer) for answer in [*answers, *late]]
    stage.catalogue.broken = False
    stage.wait(2_000)
    assert [1, 3] == restarted(stage)


def test_deletion_of_old_subscription_spares_unloaded_new_one(stage: Stage) -> None:
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.catalogue.broken = True
    stage.subscriptions.remove(member.subscription, lambda error: None)
    stage.run()
    again = subscribed(stage)
    again.subscription.close()
    stage.catalogue.broken = False
    stage.run()
    stage.wait(3_000)
    assert ["s"] == stage.stored


def test_unloaded_topics_state_never_overwrites_newer_state(stage: Stage) -> None:
    stage.produce(4)
    member = subscribed(stage)
    member.ack(0)
    saved(stage, member)  # the state is in the writer's queue
    member.subscription.close()
    stage.topic = stage.load(stage.log)
    again = subscribed(stage, start=None)
    again.ack(1)
    saved(stage, again)
    stage.run()
    stage.wait(3_000)
    assert [2, 3] == restarted(stage)


def test_a_deleted_subscription_leaves_nothing(stage: Stage) -> None:
    stage.produce(2)
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    assert ["s"] == stage.stored
    member.ack(0)
    saved(stage, member)  # the state is written before it is deleted
    answers: list[Any] = []
    stage.subscriptions.remove(member.subscription, answers.append)
    stage.run()
    stage.wait(2_000)
    assert ([None], []) == (answers, stage.stored)


def test_a_deletion_that_failed_is_tried_again(stage: Stage) -> None:
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.catalogue.broken = True
    answers: list[Any] = []
    stage.subscriptions.remove(member.subscription, answers.append)
    stage.wait(3_000)
    assert [StorageError] == [type(one) for one in answers]
    assert ["s"] == stage.stored
    stage.catalogue.broken = False
    stage.wait(1_000)
    assert [] == stage.stored


@pytest.mark.parametrize("late", [False, True])
def test_recreated_subscription_survives_deletion_of_old_one(stage: Stage, late: bool) -> None:
    stage.produce(3)
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.catalogue.broken = True
    stage.subscriptions.remove(member.subscription, lambda error: None)
    stage.run()
    if late:
        again = subscribed(stage)
        stage.catalogue.broken = False
        answers = saved(stage, again)
    else:
        stage.catalogue.broken = False
        again = subscribed(stage)
        stage.clock.sleep_ms(1_000)
        answers = saved(stage, again)
        stage.timer.step(0)  # another try of the deletion would run now
    stage.run()
    stage.wait(3_000)
    assert [None] == answers
    assert ["s"] == stage.stored


def test_cursors_of_deleted_topics_go_away(stage: Stage) -> None:
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    member.subscription.deleted()
    stage.subscriptions.topic_deleted(stage.log.topic_id)
    stage.run()
    assert [] == stage.stored


def test_cursors_of_deleted_topics_are_removed_at_start(stage: Stage) -> None:
    member = subscribed(stage)
    saved(stage, member)
    stage.run()
    stage.subscriptions.store.open({stage.log.topic_id})
    assert ["s"] == stage.stored
    stage.subscriptions.store.open(set())
    assert [] == stage.stored


def test_a_cursor_that_cannot_be_read_starts_over(stage: Stage) -> None:
    from broker.metadata.catalogue import CursorRow

    stage.produce(2)
    stage.catalogue.save_cursors([CursorRow(stage.log.topic_id, 0, "s", b"\xffnonsense")])
    assert [0, 1] == restarted(stage)


def test_an_idle_store_sets_no_timers(stage: Stage) -> None:
    stage.produce(1)
    member = subscribed(stage)
    member.ack(0)
    stage.wait(2_000)
    stage.wait(2_000)
    assert None is stage.timer.next_deadline()
