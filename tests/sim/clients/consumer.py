"""Members of a consumer group whose coordinator assigns the partitions (KIP-848). They read nothing: they only own partitions.

They give up what they are asked to at once, late or never, pause for longer than their sessions, change what they subscribe to,
leave, vanish without a word, and join again under the same member id or another one.
"""

from typing import Any
from uuid import UUID

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.sim.clients.client import Call, Client
from tests.sim.clients.offsets import MACHINE
from tests.sim.consumer_ledger import ConsumerLedger, Owner, Partition
from tests.sim.world import Violation

_NO_MEMBER = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found})
# Between two heartbeats: while there are faults, and afterwards.
_HEARTBEAT_S = 0.08
_QUIET_HEARTBEAT_S = 0.4


class ConsumerMember(Client):
    def __init__(self, *args: Any, ledger: ConsumerLedger, group: str, session_s: float, rebalance_s: float) -> None:
        super().__init__(*args)
        self._ledger = ledger
        self._group_id = group
        self._session_s = session_s
        self._rebalance_s = rebalance_s
        self._topics = sorted({topic for topic, _ in ledger.partitions})
        self._subscribed: list[str] = []
        self._owner: Owner | None = None  # the membership, from the first answer on
        self._member_id = ""
        self._epoch = -1
        self.owned: set[Partition] = set()
        self._assigned: set[Partition] = set()  # by the last assignment
        self._says_all = True  # in the next heartbeat
        self._says_owned = False
        self._heartbeat_at = 0.0
        self._give_up_at = 0.0
        self._unsure_until = 0.0
        self._restless = self.rng.choice((0.0, 0.1, 0.2))
        self._slow = self.rng.choice((0.0, 0.3))

    @property
    def done(self) -> bool:
        return self._ledger.is_settled()

    @property
    def _interval_s(self) -> float:
        return _QUIET_HEARTBEAT_S if self.quiet else _HEARTBEAT_S

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        rng, now = self.rng, self.world.now
        if any(topic not in self.history.ready for topic in self._topics):
            self.idle(0.05)
            return None
        if self._epoch < 0:
            return self._join()
        if self.owned - self._assigned and (self.quiet or now >= self._give_up_at):
            return self._heartbeat()
        if now < self._heartbeat_at:
            self.idle(max(0.01, self._heartbeat_at - now))
            return None
        if self.quiet:
            if self._subscribed != self._topics:
                self._subscribed, self._says_all = self._topics, True
        elif rng.random() < self._restless:
            return self._be_restless()
        return self._heartbeat()

    def _be_restless(self) -> Call | None:
        rng = self.rng
        what = rng.choice(("leave", "vanish", "vanish", "rejoin", "subscribe", "pause"))
        self.world.note(f"{self.name}: {what}")
        if what == "subscribe":
            self._subscribe()
            self._says_all = True
            return self._heartbeat()
        if what == "pause":
            self.paused_until = self.world.now + rng.random() * 1.5 * max(self._session_s, self._rebalance_s)
            self.idle(0.01)
            return None
        member_id = self._member_id
        self._forget()
        if what == "leave":
            return self._call({"member_id": member_id, "member_epoch": -1}, "leave")
        if what == "vanish":
            self._member_id = ""
        return self._join()

    def _subscribe(self) -> None:
        rng = self.rng
        self._subscribed = (
            self._topics if self.quiet else rng.sample(self._topics, rng.randrange(1, 1 + len(self._topics)))
        )

    def _join(self) -> Call:
        if not self._member_id:
            self._member_id = str(UUID(int=self.rng.getrandbits(128)))
        self._subscribe()
        self._epoch = 0
        self._heartbeat_at = self.world.now + self._interval_s
        owner = self._owner = Owner(self.name, self._member_id, unsure_until=self._unsure_until)
        fields = {
            "member_id": self._member_id,
            "member_epoch": 0,
            "rebalance_timeout": int(self._rebalance_s * 1000),
            "subscribed_topic_names": self._subscribed,
            "topic_partitions": [],
        }
        return self._call(fields, "join", owner, self._ledger.newest_epoch)

    def _heartbeat(self) -> Call:
        """Here the client gives up the partitions that it was asked to."""
        owner, now = self._owner, self.world.now
        assert owner is not None
        gives_up = self.owned - self._assigned
        if gives_up and (self.quiet or now >= self._give_up_at):
            self.owned -= gives_up
            self._ledger.given_up(owner, gives_up)
            self._says_owned = True
        fields: dict[str, Any] = {"member_id": self._member_id, "member_epoch": self._epoch}
        if self._says_all or self._says_owned or self.rng.random() < 0.1:
            fields["topic_partitions"] = self._topic_partitions()
        if self._says_all:
            fields["rebalance_timeout"] = int(self._rebalance_s * 1000)
            fields["subscribed_topic_names"] = self._subscribed
        self._says_all = self._says_owned = False
        self._heartbeat_at = now + self._interval_s * (0.5 + self.rng.random())
        return self._call(fields, "heartbeat", owner, 0)

    def _topic_partitions(self) -> list[dict[str, Any]]:
        ids = {name: topic_id for topic_id, name in self._ledger.topic_names().items()}
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self.owned):
            topics.setdefault(topic, []).append(number)
        return [{"topic_id": ids[topic], "partitions": numbers} for topic, numbers in topics.items()]

    def _call(self, fields: dict[str, Any], *context: Any) -> Call:
        nothing = {"topic_partitions": None}
        return Call(ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group_id": self._group_id, **nothing, **fields}, context)

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        error = body.error_code
        if call.context[0] == "leave":
            if error and error not in _NO_MEMBER:
                self._excuse(error)
            return
        _, owner, newest = call.context
        if owner is not self._owner:
            return
        if error:
            self._refused(call, owner, error)
            return
        if body.member_id != self._member_id:
            raise Violation(f"{self.name}: the answer is for {body.member_id}, not for {self._member_id}")
        if body.member_epoch < newest:
            raise Violation(f"{self.name} joins with the epoch {body.member_epoch}; {newest} was told before")
        now = self.world.now
        owner.member_until = call.sent_at + self._session_s
        assigned = None
        if body.assignment is not None:
            names = self._ledger.topic_names()
            assigned = {
                (names[topic.topic_id], number)
                for topic in body.assignment.topic_partitions
                for number in topic.partitions
            }
        self._ledger.told(owner, body.member_epoch, assigned, call.sent_at)
        self._epoch = body.member_epoch
        if assigned is None:
            return
        if assigned - self.owned:
            self._says_owned = True
        self._assigned = assigned
        if not self.owned - assigned:
            owner.revoke_by = float("inf")
        elif owner.revoke_by == float("inf"):
            owner.revoke_by = call.sent_at + self._rebalance_s
            late_s = self._rebalance_s * 1.5 * self.rng.random()
            self._give_up_at = now + (late_s if self.rng.random() < self._slow else 0.0)
        self.owned |= assigned

    def _refused(self, call: Call, owner: Owner, error: int) -> None:
        if error not in _NO_MEMBER:
            self._says_all = True
            if call.context[0] == "join":
                self._epoch = -1
            # It may have been carried out.
            self._lose_sight(owner, call)
            self._excuse(error)
            self.idle(0.1)
            return
        if owner.is_sure(self.world.now) and self.life == self.world.lives:
            raise Violation(f"{self.name}: {ErrorCode(error).name}, and it is a member")
        self._forget()

    # -- trouble ------------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The member is none any more, and gives up all that it had."""
        if self._owner is not None:
            self._ledger.gone(self._owner)
        self._owner = None
        self._epoch = -1
        self.owned = set()
        self._assigned = set()
        self._says_all = self._says_owned = False

    def lost(self, call: Call) -> None:
        if call.context[0] == "leave":
            return
        _, owner, _ = call.context
        if owner is not self._owner:
            return
        self._lose_sight(owner, call)
        self._says_all = True
        if call.context[0] == "join":
            self._epoch = -1

    def _lose_sight(self, owner: Owner, call: Call) -> None:
        owner.lost(call.sent_at, self.world.now, self._rebalance_s)
        self._unsure_until = owner.unsure_until

    def _excuse(self, error: int) -> None:
        if self.strict or error not in MACHINE:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for ConsumerGroupHeartbeat")
