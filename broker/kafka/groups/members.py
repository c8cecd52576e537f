"""The members of a classic group, its parked requests, and its pending members.

Pure bookkeeping of a ``ClassicGroup``, under the group's lock. It knows no states or deadlines.

``Members``: dynamic and static members, the leader, and the votes for a protocol.

``ParkedRequests``: joins and syncs that wait for their answer. A join is parked while a rebalance is prepared (and, for a static
member that came back to a stable group, until its new member id is durable), a sync until the leader's assignment is durable.
Each request is answered exactly once, because its connection stays muted until then. Kafka drops a parked request without an
answer in two cases: when its member sends another, and when a member that waits in sync leaves. Here both are answered.

``PendingMembers``: clients that were given a member id (KIP-394) and have not come back with it yet. Both their number and their
bytes are bounded: a client comes back at once, and a forgotten client begins anew.

Tests: tests/kafka/groups/test_group_joining.py,
tests/kafka/groups/test_group_static.py,
tests/kafka/groups/test_group_machine.py,
tests/kafka/groups/test_group_syncing.py.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from broker.kafka.groups.values import (
    MEMBER_BYTES,
    PENDING_MEMBER_BYTES,
    PROTOCOL_BYTES,
    Effect,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    MemberSnapshot,
    Protocols,
    SyncAnswer,
    SyncReply,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode


def size_of(member_id: str, group_instance_id: str | None, client_id: str, protocols: Protocols) -> int:
    """Approximate memory of a member in bytes, without its assignment."""
    texts = 2 * len(member_id) + 2 * len(group_instance_id or "") + len(client_id)
    return MEMBER_BYTES + texts + sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


@attrs.define(eq=False)
class Member:
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # It is in no generation yet and may not know its member id, so it cannot send heartbeats.
    is_new: bool = False

    @classmethod
    def new(cls, member_id: str, request: JoinRequest) -> "Member":
        """The member that a client becomes by joining."""
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )

    @classmethod
    def restore(cls, saved: MemberSnapshot) -> "Member":
        return cls(**attrs.asdict(saved, recurse=False))

    @property
    def size_bytes(self) -> int:
        """Approximate memory, without the assignment."""
        return size_of(self.member_id, self.group_instance_id, self.client_id, self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for the protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that is a candidate."""
        return next(name for name, _ in self.protocols if name in candidates)

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        return MemberSnapshot(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            assignment,
        )


class Members:
    """Members by id, in the order of their first joins."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.size_bytes = 0  # approximate memory of all members, with their assignments
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # group instance id -> member id
        self._supported: Counter[str] = Counter()  # protocol -> members that support it

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def static_member_id(self, group_instance_id: str) -> str | None:
        """The present member id of this static member; None if it does not exist."""
        return self._static.get(group_instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members; 0 if there are none."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def add(self, member: Member) -> None:
        """The first member becomes the leader."""
        assert member.member_id not in self._members, member.member_id
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static, member.group_instance_id
            self._static[member.group_instance_id] = member.member_id
        self._members[member.member_id] = member
        self._count(member.protocols, 1)
        self.size_bytes += member.size_bytes + len(member.assignment)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove the member if it exists. If it leads, the member that has been in the group longest becomes the leader."""
        member = self._members.pop(member_id, None)
        if member is None:
            return
        self.size_bytes -= member.size_bytes + len(member.assignment)
        self._count(member.protocols, -1)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def replace(self, old_member_id: str, new_member_id: str) -> Member:
        """A static member comes back under a new member id. Everything else stays, including leadership."""
        member = self._members.pop(old_member_id)
        assert member.group_instance_id is not None
        self.size_bytes -= member.size_bytes
        member.member_id = new_member_id
        self.size_bytes += member.size_bytes
        self._members[new_member_id] = member
        self._static[member.group_instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def update(self, member: Member, source: JoinRequest | MemberSnapshot) -> None:
        """The member has joined again, perhaps with other protocols; or its former state is restored."""
        self.size_bytes -= member.size_bytes
        self._count(member.protocols, -1)
        member.client_id, member.client_host = source.client_id, source.client_host
        member.session_timeout_ms = source.session_timeout_ms
        member.rebalance_timeout_ms = source.rebalance_timeout_ms
        member.protocols = source.protocols
        self._count(member.protocols, 1)
        self.size_bytes += member.size_bytes

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def supports_one_of(self, protocols: Protocols) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._supported[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members support. The protocol with most votes is selected; in
        a tie, the protocol with the earliest vote."""
        candidates = {name for name, members in self._supported.items() if members == len(self._members)}
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:  # a protocol that is named twice counts once
            self._supported[name] += change
            if not self._supported[name]:
                del self._supported[name]


class ParkedRequests:
    """``emit`` takes the answers, as effects of the group."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self.joins: dict[str, JoinReply] = {}  # by member id
        self.syncs: dict[str, SyncReply] = {}  # by member id
        self._emit = emit

    def park_join(self, member_id: str, to: JoinReply) -> None:
        # The member has given up its earlier join, if any, but the connection of that join may still exist.
        self.answer_join(member_id, JoinResult(ErrorCode.rebalance_in_progress, member_id))
        self.joins[member_id] = to

    def park_sync(self, member_id: str, to: SyncReply) -> None:
        self.answer_sync(member_id, SyncResult(ErrorCode.rebalance_in_progress))
        self.syncs[member_id] = to

    def answer_join(self, member_id: str, result: JoinResult) -> None:
        """Answer the member's parked join, if there is one."""
        to = self.joins.pop(member_id, None)
        if to is not None:
            self._emit(JoinAnswer(to, result))

    def answer_sync(self, member_id: str, result: SyncResult) -> bool:
        """Answer the member's parked sync. False if there is none."""
        to = self.syncs.pop(member_id, None)
        if to is None:
            return False
        self._emit(SyncAnswer(to, result))
        return True

    def answer_all(self, error: ErrorCode) -> None:
        """Refuse all parked requests."""
        for member_id in list(self.joins):
            self.answer_join(member_id, JoinResult(error, member_id))
        for member_id in list(self.syncs):
            self.answer_sync(member_id, SyncResult(error))


# Ten times the members of a large group.
PENDING_MAX = 1000


class PendingMembers:
    """Member ids, the oldest first. ``max_bytes`` bounds ``size_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._sizes

    def ids(self) -> set[str]:
        return set(self._sizes)

    def add(self, member_id: str) -> list[str]:
        """Returns the ids that were forgotten to make room, the oldest first."""
        size = PENDING_MEMBER_BYTES + len(member_id)
        forgotten = []
        while self._sizes and (len(self._sizes) >= PENDING_MAX or self.size_bytes + size > self._max_bytes):
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            forgotten.append(oldest)
        self._sizes[member_id] = size
        self.size_bytes += size
        return forgotten

    def remove(self, member_id: str) -> None:
        """Remove the id if it exists."""
        self.size_bytes -= self._sizes.pop(member_id, 0)

    def clear(self) -> None:
        self._sizes.clear()
        self.size_bytes = 0
