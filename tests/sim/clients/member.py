"""Members of a consumer group."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import consumer_protocol
from tests.sim.clients.client import Call, Client
from tests.sim.clients.offsets import MACHINE, fetched_offsets, offset_fetch
from tests.sim.history import Commit
from tests.sim.world import Violation

_SESSION_S = 2.0
_REBALANCE_S = 4.0
_LOST_MEMBERSHIP = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id})


class Member(Client):
    """Joins, is assigned partitions, reads them and commits how far it is; leaves, comes back, and sometimes is a zombie."""

    def __init__(self, *args: Any, group: str, topic: str, partitions: int, restless: float = 0.01) -> None:
        super().__init__(*args)
        self._group = self.history.group(group)
        self._group_id = group
        self._topic = topic
        self._count = partitions
        self._restless = restless
        self._member_id = ""
        self._generation = -1
        self._state = "join"
        self._assignments: list[dict[str, Any]] = []
        self._previous: dict[int, dict[int, int]] = {}  # generation to positions
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._heartbeat_at = 0.0
        self._reset: set[int] = set()
        self.generations = 0
        self.commits = 0

    @property
    def done(self) -> bool:
        """The group has read and committed everything."""
        for number in range(self._count):
            end = self.history.partition(self._topic, number).known_end
            if end and self._group.settled(self._topic, number) < end:
                return False
        return True

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        if self._topic not in self.history.ready:
            self.idle(0.05)
            return None
        if self._state == "join":
            return self._join()
        if self._state == "sync":
            return self._sync()
        if self._state == "offsets":
            return self._fetch_offsets()
        now = self.world.now
        if not self.quiet and self.rng.random() < self._restless:
            if self.rng.random() < 0.5:
                self._state = "join"
                call = self._leave()
                self._forget()
                return call
            self.paused_until = now + self.rng.random() * 2.5 * _SESSION_S  # a long collection of garbage
            self.world.note(f"{self.name} pauses")
            self.idle(0.0)
            return self._commit() if self._positions else None
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + _SESSION_S / 4
            return Call(ApiKey.HEARTBEAT, self._identity(), "heartbeat")
        behind = {n: at for n, at in self._positions.items() if self._committed.get(n, -1) != at}
        if behind and self.rng.random() < 0.3:
            return self._commit()
        if self._reset:
            return self._list_offsets()
        if self._previous and self.rng.random() < 0.05:
            return self._commit_late()
        if self._positions and self.rng.random() < 0.8:
            return self._fetch()
        self.idle(min(0.3, max(0.01, self._heartbeat_at - now)) * self.rng.random())
        return None

    def _identity(self) -> dict[str, Any]:
        return {"group_id": self._group_id, "generation_id": self._generation, "member_id": self._member_id}

    def _join(self) -> Call:
        metadata = consumer_protocol.encode_subscription([self._topic])
        fields = {
            "group_id": self._group_id,
            "session_timeout": int(_SESSION_S * 1000),
            "rebalance_timeout": int(_REBALANCE_S * 1000),
            "member_id": self._member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        return Call(ApiKey.JOIN_GROUP, fields, "join", patience_s=60.0)

    def _sync(self) -> Call:
        fields = {
            **self._identity(),
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": self._assignments,
        }
        return Call(ApiKey.SYNC_GROUP, fields, "sync", patience_s=60.0)

    def _leave(self) -> Call:
        fields = {
            "group_id": self._group_id,
            "member_id": self._member_id,
            "members": [{"member_id": self._member_id}],
        }
        return Call(ApiKey.LEAVE_GROUP, fields, "leave")

    def _fetch_offsets(self) -> Call:
        return offset_fetch(self._group_id, self._topic, list(self._positions), self._group.tick())

    def _commit(self) -> Call:
        partitions, commits = [], {}
        for number, offset in self._positions.items():
            if offset < 0:
                continue
            partitions.append({"partition_index": number, "committed_offset": offset, "committed_metadata": ""})
            commits[number] = self._group.committing(self._topic, number, offset)
        fields = {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": self._generation,
            "member_id": self._member_id,
            "topics": [{"name": self._topic, "partitions": partitions}],
        }
        # What has been told to anybody by now: a commit of an older generation must be refused.
        return Call(ApiKey.OFFSET_COMMIT, fields, ("commit", commits, self._generation, self._group.newest))

    def _commit_late(self) -> Call:
        """From a thread that has not heard of the new generation yet: must be refused."""
        generation, positions = self._previous.popitem()
        partitions = [
            {"partition_index": number, "committed_offset": offset, "committed_metadata": ""}
            for number, offset in positions.items()
        ]
        fields = {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": generation,
            "member_id": self._member_id,
            "topics": [{"name": self._topic, "partitions": partitions}],
        }
        return Call(ApiKey.OFFSET_COMMIT, fields, ("late", generation))

    def _list_offsets(self) -> Call:
        numbers = self._at_one_node(sorted(self._reset))
        partitions = [{"partition_index": n, "timestamp": -2} for n in numbers]
        return Call(
            ApiKey.LIST_OFFSETS,
            {"replica_id": -1, "topics": [{"name": self._topic, "partitions": partitions}]},
            "earliest",
        )

    def _fetch(self) -> Call:
        numbers = self._at_one_node([n for n, at in self._positions.items() if at >= 0])
        context = {n: (self._positions[n], self.history.partition(self._topic, n).known_end) for n in numbers}
        partitions = [{"partition": n, "fetch_offset": context[n][0], "partition_max_bytes": 10_000} for n in numbers]
        fields = {
            "max_wait": self.rng.randrange(200),
            "min_bytes": 1,
            "max_bytes": 100_000,
            "topics": [{"topic": self._topic, "partitions": partitions}],
        }
        return Call(ApiKey.FETCH, fields, ("fetch", self._generation, context))

    def _at_one_node(self, numbers: list[int]) -> list[int]:
        return [number for _, number in self.at_one_node([(self._topic, number) for number in numbers])]

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        kind = call.context if isinstance(call.context, str) else call.context[0]
        getattr(self, f"_on_{kind}")(call, body)

    def _on_join(self, call: Call, body: Any) -> None:
        error = body.error_code
        if error == ErrorCode.member_id_required:
            self._member_id = body.member_id
        elif error:
            self._failed(error, "JoinGroup")
        else:
            self._member_id = body.member_id
            self._generation = body.generation_id
            self._group.joined(body.member_id, body.generation_id, body.leader, self.life)
            self._assignments = self._assign([member.member_id for member in body.members]) if body.members else []
            if bool(body.members) != (body.leader == body.member_id):
                raise Violation(
                    f"{self.name}: leader {body.leader}, member {body.member_id}, {len(body.members)} members told"
                )
            self._state = "sync"

    def _assign(self, members: list[str]) -> list[dict[str, Any]]:
        if len(set(members)) != len(members) or self._member_id not in members:
            raise Violation(f"{self.name}: the leader {self._member_id} is told of the members {members}")
        shares: dict[str, list[int]] = {member: [] for member in members}
        for number in range(self._count):
            shares[members[number % len(members)]].append(number)
        return [
            {"member_id": member, "assignment": consumer_protocol.encode_assignment({self._topic: share})}
            for member, share in shares.items()
        ]

    def _on_sync(self, call: Call, body: Any) -> None:
        if body.error_code:
            self._failed(body.error_code, "SyncGroup")
            return
        assignment = consumer_protocol.parse_assignment(body.assignment)
        mine = assignment.partitions.get(self._topic, [])
        self._group.assigned(self._member_id, self._generation, self.life, [(self._topic, number) for number in mine])
        self._previous.pop(self._generation, None)
        self.generations += 1
        self._positions = dict.fromkeys(mine, -1)
        self._committed = {}
        self._reset = set()
        self._heartbeat_at = self.world.now + _SESSION_S / 4
        self._state = "offsets" if mine else "stable"

    def _on_offsets(self, call: Call, body: Any) -> None:
        for number, offset in fetched_offsets(self, call, body, self._topic):
            if offset is None:
                return
            self._group.fetched(self._topic, number, offset, call.context[1])
            self._positions[number] = max(offset, 0)
            if offset >= 0:
                self._committed[number] = offset
        self._state = "stable"

    def _on_heartbeat(self, call: Call, body: Any) -> None:
        if body.error_code:
            self._failed(body.error_code, "Heartbeat")

    def _on_leave(self, call: Call, body: Any) -> None:
        error = body.error_code
        if error and error != ErrorCode.unknown_member_id:
            self._excuse(error, "LeaveGroup")

    def _on_commit(self, call: Call, body: Any) -> None:
        _, commits, generation, newest = call.context
        for topic in body.topics:
            for result in topic.partitions:
                commit: Commit = commits[result.partition_index]
                error = result.error_code
                if not error:
                    self._group.committed(commit, self._topic, result.partition_index)
                    self.commits += 1
                    if generation < newest:
                        raise Violation(
                            f"{self.name}: an offset of generation {generation} was committed after {newest} had begun"
                        )
                    if generation == self._generation:
                        self._committed[result.partition_index] = commit.offset
                    continue
                if error in MACHINE:
                    self._excuse(error, "OffsetCommit")  # it may have been written all the same
                    self.idle(0.1)
                else:
                    self._group.refused(commit)
                    self._failed(error, "OffsetCommit")

    def _on_late(self, call: Call, body: Any) -> None:
        for result in body.topics[0].partitions:
            if not result.error_code:
                raise Violation(f"{self.name}: generation {call.context[1]} committed in {self._generation}")
            if result.error_code not in _LOST_MEMBERSHIP and result.error_code != ErrorCode.rebalance_in_progress:
                self._excuse(result.error_code, "OffsetCommit")

    def _on_earliest(self, call: Call, body: Any) -> None:
        for data in body.topics[0].partitions:
            if data.error_code:
                self._failed(data.error_code, "ListOffsets")
                return
            if data.partition_index in self._reset and data.partition_index in self._positions:
                self._positions[data.partition_index] = data.offset
            self._reset.discard(data.partition_index)

    def _on_fetch(self, call: Call, body: Any) -> None:
        _, generation, context = call.context
        if not body.responses and getattr(body, "throttle_time", None):
            return  # as Kafka does it: nothing was read
        for data in body.responses[0].partitions:
            number = data.partition_index
            offset, least_end = context[number]
            if data.error_code == ErrorCode.offset_out_of_range:
                self._reset.add(number)
                continue
            if data.error_code:
                self._excuse(data.error_code, "Fetch")
                self.idle(0.1)
                continue
            history = self.history.partition(self._topic, number)
            position = history.fetched(
                offset,
                least_end,
                data.high_watermark,
                max(0, getattr(data, "log_start_offset", 0)),
                bytes(data.records or b""),
                self.life,
            )
            if generation == self._generation and number in self._positions:
                self._positions[number] = position

    # -- trouble ------------------------------------------------------------------------------------------------------------

    def _failed(self, error: int, what: str) -> None:
        if error in _LOST_MEMBERSHIP:
            self._forget()
        elif error == ErrorCode.rebalance_in_progress:
            self._rejoin()
        else:
            self._excuse(error, what)
            self.idle(0.1)

    def _rejoin(self) -> None:
        self._state = "join"
        if self._generation >= 0 and self._positions:
            self._previous = {self._generation: {n: max(0, at) for n, at in self._positions.items()}}
        self._positions = {}

    def _forget(self) -> None:
        self._rejoin()
        self._member_id = ""
        self._generation = -1

    def _excuse(self, error: int, what: str) -> None:
        if self.strict or error not in MACHINE:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")

    def lost(self, call: Call) -> None:
        kind = call.context if isinstance(call.context, str) else call.context[0]
        if kind in ("join", "sync"):
            self._rejoin()
