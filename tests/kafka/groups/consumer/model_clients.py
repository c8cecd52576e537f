"""Consumers for the models of consumer groups: they obey sooner or later, and their requests and answers get lost.

``holds`` has the partitions that a client may be reading. New partitions are added at once, and partitions to be given up stay
until ``revoke``."""

from uuid import UUID

import attrs

from broker.kafka.groups.consumer.values import HeartbeatRequest, HeartbeatResult, TopicPartitions
from protocol.kafka.errors import ErrorCode

Partitions = frozenset[tuple[UUID, int]]
NOTHING: Partitions = frozenset()

# After these the client gives up everything and joins anew.
_START_ANEW = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id)


def as_owned(partitions: Partitions) -> TopicPartitions:
    topics = sorted({topic_id for topic_id, _ in partitions})
    return tuple(
        (topic_id, tuple(sorted(each for topic, each in partitions if topic == topic_id))) for topic_id in topics
    )


@attrs.define(eq=False)
class ModelConsumer:
    """A client of the consumer protocol. ``attempt`` numbers its requests: an answer to an earlier one is lost."""

    member_id: str
    instance_id: str | None
    names: tuple[str, ...]
    regex: str | None
    assignor: str | None
    epoch: int = 0
    holds: Partitions = NOTHING
    target: Partitions = NOTHING
    is_report_due: bool = False
    is_full_due: bool = False
    is_waiting: bool = False
    attempt: int = 0
    errors: list[ErrorCode] = attrs.Factory(list)
    # The last epoch that it was told since it joined.
    told_epoch: int = 0
    # Its session may have ended without its knowledge.
    may_be_fenced: bool = False

    def request(self) -> HeartbeatRequest:
        self.is_waiting = True
        self.may_be_fenced = False
        self.attempt += 1
        if self.epoch == 0:
            self.give_up()
        is_full = self.is_full_due or self.epoch == 0
        return HeartbeatRequest(
            self.member_id,
            self.epoch,
            self.instance_id,
            None,
            60_000 if is_full else -1,
            "client",
            "/127.0.0.1",
            self.names if is_full else None,
            (self.regex or "") if is_full else None,
            self.assignor if is_full else None,
            as_owned(self.holds) if is_full or self.is_report_due else None,
        )

    def change_subscription(self, names: tuple[str, ...], regex: str | None) -> None:
        self.names, self.regex, self.is_full_due = names, regex, True

    def lose_answer(self) -> None:
        """The connection has broken, or the client has waited too long."""
        self.is_waiting = False
        self.attempt += 1
        self.is_full_due = True

    def take(self, attempt: int, result: HeartbeatResult) -> None:
        if attempt != self.attempt or not self.is_waiting:
            return
        self.is_waiting = False
        if result.error is ErrorCode.none:
            assert result.member_id == self.member_id
            assert result.member_epoch > 0
            assert result.member_epoch >= self.told_epoch, "an epoch went back"
            self.epoch = self.told_epoch = result.member_epoch
            self.is_full_due = self.is_report_due = False
            if result.assignment is not None:
                self.target = frozenset((topic_id, each) for topic_id, some in result.assignment for each in some)
                self.holds |= self.target
                self.is_report_due = self.holds == self.target
            return
        self.errors.append(result.error)
        if result.error in _START_ANEW:
            self.give_up()
        else:
            self.is_full_due = True

    def give_up(self) -> None:
        """Give everything up, and begin anew."""
        self.epoch = self.told_epoch = 0
        self.holds = self.target = NOTHING
        self.is_report_due = False

    def revoke(self) -> None:
        if self.holds != self.target:
            self.holds = self.holds & self.target
            self.is_report_due = True
