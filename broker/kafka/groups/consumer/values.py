"""The requests, answers, effects and settings of consumer groups (KIP-848). Plain values, except for the ``RegexTask``.

``Assignment`` and the mapping of a ``TopicsImage`` are never changed once they are made: threads share them without a lock.

``RegexTask`` matches the regular expressions of members' subscriptions against the names of all topics. It is an effect of a
``ConsumerGroup``. The matching takes about 1 us for each name and expression, so it is done without the group's lock, in slices,
on a thread that may be busy for a while. Expressions are RE2's (``broker/expressions.py``).

Tests: tests/kafka/groups/consumer/test_consumer_group.py,
tests/kafka/groups/consumer/test_group_regexes.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

import attrs

from broker.errors import RequestError
from broker.expressions import InvalidExpression, NoExpressions, compile_expression
from broker.kafka.groups.values import GroupSnapshot
from protocol.kafka.errors import ErrorCode

# Characters of an expression. A list of a hundred names fits.
PATTERN_MAX: Final = 8192
# Names that are matched in a slice, before other tasks get a turn: about 1 ms.
_SLICE: Final = 500


def compile_regex(pattern: str) -> Any:
    """RE2's object. Raises RequestError if the expression cannot be used."""
    if len(pattern) > PATTERN_MAX:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex has {len(pattern)} characters, and {PATTERN_MAX} are allowed.",
        )
    try:
        return compile_expression(pattern)
    except NoExpressions as error:
        raise RequestError(ErrorCode.invalid_regular_expression, error.message) from None
    except InvalidExpression as error:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {error.message}.",
        ) from None


# The epoch with which a static member leaves for a while.
LEAVE_FOR_A_WHILE_EPOCH: Final = -2

# Topic id -> partitions.
Assignment = Mapping[UUID, frozenset[int]]
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
# As in a request or an answer.
TopicPartitions = tuple[tuple[UUID, tuple[int, ...]], ...]


class TopicInfo(NamedTuple):
    topic_id: UUID
    partitions: int


@attrs.frozen(eq=False)
class TopicsImage:
    """All topics at one moment. ``generation`` is greater in every later image that differs."""

    generation: int
    by_name: Mapping[str, TopicInfo]
    name_of: Mapping[UUID, str]

    @classmethod
    def of(cls, generation: int, topics: Mapping[str, TopicInfo]) -> "TopicsImage":
        return cls(generation, topics, {info.topic_id: name for name, info in topics.items()})


@attrs.define(eq=False)
class RegexTask:
    """Effect: call ``run_slice`` until it returns True, with no lock held; remove topics from ``matches`` that may not be
    described on behalf of ``context``; then pass the task to the group's ``regexes_resolved``.

    ``context``: of the last request of a member with an expression, as the handler gave it; None after a restart. ``matches``:
    expression -> names of topics; None until all slices are done, or after a failure, which ``error`` tells.
    """

    patterns: tuple[str, ...]
    topics: TopicsImage
    context: object
    started: float
    matches: Mapping[str, frozenset[str]] | None = None
    error: Exception | None = None
    _slices: Iterator[None] | None = None

    def run_slice(self) -> bool:
        """Match for about a millisecond. True if the task is done, or has failed."""
        if self._slices is None:
            self._slices = self._run()
        try:
            next(self._slices)
        except StopIteration:
            return True
        except Exception as error:
            self.error = error
            return True
        return False

    def _run(self) -> Iterator[None]:
        names = tuple(self.topics.by_name)
        by_pattern: dict[str, frozenset[str]] = {}
        for pattern in self.patterns:
            matches = compile_regex(pattern).fullmatch
            topics: list[str] = []
            for start in range(0, len(names), _SLICE):
                topics.extend(name for name in names[start : start + _SLICE] if matches(name))
                yield
            by_pattern[pattern] = frozenset(topics)
        self.matches = by_pattern


class MigrationPolicy(Enum):
    """``group.consumer.migration.policy``: the allowed conversions between classic and consumer groups."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@attrs.frozen
class ConsumerGroupLimits:
    """The operator's limits for all consumer groups, or for one group. The defaults are Kafka's."""

    max_size: int = 2**31 - 1
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    # The first is used if no member names one.
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    # Members that a classic group may have, for the downgrade.
    classic_max_size: int = 2**31 - 1
    # Regular expressions are matched again at least this often, because rights on topics may have changed.
    regex_refresh_interval_ms: int = 600_000
    # Size of the group's members with their subscriptions and assignments.
    max_bytes: int = 2**31 - 1


@attrs.define(eq=False)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. None (and -1) means no change of a field.

    ``context`` is returned in ``RegexTask``: the requester on whose behalf topics are matched. The group does not inspect it.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: Sequence[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: TopicPartitions | None = None
    context: object = None


@attrs.frozen
class HeartbeatResult:
    """``assignment``: topic ids with their partitions in ascending order; None if the member's assignment has not changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: TopicPartitions | None = None


# Where an answer goes. The group keeps it and returns it in an effect; it never calls it.
HeartbeatReply = Callable[[HeartbeatResult], None]


@attrs.frozen
class SaveNote:
    """``then`` of a ``SaveRows``. ``number`` counts the saves of the group. ``replaces_classic``: the group was classic until
    now, and its stored generation is to be deleted in the same change."""

    number: int
    replaces_classic: bool = False


@attrs.frozen(eq=False)
class BecomeClassic:
    """Effect: only classic members remain, so the group becomes classic (the online downgrade). It is the last effect of the
    consumer group, which is dead from now on.

    The catalogue writes ``snapshot`` as the generation of a classic group and deletes ``rows``, in one change. Under the
    entry's lock the group is replaced by ``ClassicGroup.restore(group_id, limits, snapshot, now)``, whose ``rebalance`` is
    called. When the change is durable, or has failed, ``saved`` of the old group is called with this effect. After a failure
    the rows have to be deleted with the next saved generation."""

    snapshot: GroupSnapshot
    rows: tuple[str, ...]
    then: SaveNote


@attrs.frozen
class ConsumerMemberDescription:
    """``member_type``: 0 for a classic member, 1 for a member of the consumer protocol, as in ConsumerGroupDescribe (1)."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: Assignment
    target_assignment: Assignment
    member_type: int


@attrs.frozen
class ConsumerGroupDescription:
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]


def as_topic_partitions(assignment: Assignment) -> TopicPartitions:
    """In the form of an answer."""
    return tuple((topic_id, tuple(sorted(partitions))) for topic_id, partitions in assignment.items())
