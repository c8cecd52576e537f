"""Members of a share group: they join, take records, and accept, release, reject, renew or forget each of them.

They pause for longer than their locks and sessions last, leave, vanish without a word, and come back as somebody else. Each
request for records is for a session on the connection; when that is lost, the broker gives the member's records to others.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records import records
from protocol.kafka.records.batch import batches, check_crc
from tests.sim.clients.client import Call, Client
from tests.sim.clients.offsets import MACHINE
from tests.sim.share_ledger import Record, ShareLedger, Sharer
from tests.sim.world import Violation

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
_NO_SESSION = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})
_NO_MEMBER = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found})
_HEARTBEAT_S = 0.4
_TYPES = (ACCEPT, RELEASE, REJECT, RENEW)

# By partition, the acknowledgement of each record.
Acknowledged = Mapping[int, Mapping[Record, int]]


class ShareMember(Client):
    def __init__(self, *args: Any, ledger: ShareLedger, group: str, session_s: float) -> None:
        super().__init__(*args)
        self._ledger = ledger
        self._group_id = group
        self._session_s = session_s
        self._member_id = ""
        self._epoch = -1
        self._topic_id: UUID | None = None
        self._assigned: list[int] = []
        self._heartbeat_at = 0.0
        self._member_until = 0.0
        self._in_doubt = False  # the answer to a heartbeat was lost
        self._session_epoch = 0  # of the next request
        self._fetched: set[int] = set()  # partitions that are in the session
        self._sharer: Sharer | None = None  # the session
        self._held: dict[Record, None] = {}  # not acknowledged
        # Some are careless: a record that they forget comes again when its lock has ended.
        self._forgotten: set[Record] = set()
        self._careless = self.rng.choice((0.0, 0.1, 0.3))
        self._restless = self.rng.choice((0.0, 0.01, 0.03))

    @property
    def done(self) -> bool:
        return self._ledger.finished()

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        rng, now = self.rng, self.world.now
        if self._ledger.topic not in self.history.ready:
            self.idle(0.05)
            return None
        if self._epoch < 0:
            self._member_id = str(UUID(int=rng.getrandbits(128)))
            return self._heartbeat(0)
        if now >= self._heartbeat_at:
            return self._heartbeat(self._epoch)
        if not self.quiet and rng.random() < self._restless:
            return self._be_restless()
        is_over = self.quiet and self._ledger.finished()
        if self._held and rng.random() < 0.6 and (call := self._acknowledge()) is not None:
            return call
        if self._assigned and rng.random() < (0.0 if is_over else 0.3 if self.quiet else 0.8):
            return self._fetch()
        least = 0.2 if is_over else 0.0
        self.idle(max(least, min(0.3, max(0.01, self._heartbeat_at - now)) * rng.random()))
        return None

    def _be_restless(self) -> Call | None:
        rng = self.rng
        what = rng.choice(("leave", "vanish", "close", "pause", "pause"))
        self.world.note(f"{self.name}: {what}")
        if what == "leave":
            call = self._heartbeat(-1)
            self._forget()
            return call
        if what == "close" and self._session_epoch > 0:
            call = self._acknowledge(close=True)
            self._end_session()
            return call
        if what == "vanish":
            self._forget()
            if rng.random() < 0.5:
                self.disconnect(rudely=rng.random() < 0.5)
        else:
            longest = 1.5 * max(self._ledger.lock_s, self._session_s)
            self.paused_until = self.world.now + rng.random() * longest
        self.idle(0.01)
        return None

    def _heartbeat(self, epoch: int) -> Call:
        names = [self._ledger.topic] if epoch == 0 or self.rng.random() < 0.1 else None
        fields = {
            "group_id": self._group_id,
            "member_id": self._member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": None if epoch < 0 else names,
        }
        self._heartbeat_at = self.world.now + _HEARTBEAT_S
        return Call(ApiKey.SHARE_GROUP_HEARTBEAT, fields, ("heartbeat", self._member_id, epoch))

    def _session(self) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "member_id": self._member_id,
            "share_session_epoch": self._session_epoch,
        }

    def _say(self, *, may_renew: bool) -> Acknowledged:
        """What becomes of some of the records that the member has."""
        rng = self.rng
        said: dict[int, dict[Record, int]] = {}
        for record in sorted(self._held)[: rng.choice((1, 5, 100))]:
            if rng.random() < self._careless and not (self.quiet and record in self._forgotten):
                del self._held[record]
                self._forgotten.add(record)
                continue
            if self.quiet:
                kind = ACCEPT
            else:
                kind = rng.choices(_TYPES, (80, 12, 4, 4 if may_renew else 0))[0]
            said.setdefault(record[0], {})[record] = kind
        return said

    def _topics(self, said: Acknowledged, others: Iterable[int] = ()) -> list[dict[str, Any]]:
        numbers = sorted({*said, *others})
        if not numbers:
            return []
        partitions = [
            {"partition_index": number, "acknowledgement_batches": _batches(said.get(number, {}))} for number in numbers
        ]
        return [{"topic_id": self._topic_id, "partitions": partitions}]

    def _asking(self, said: Acknowledged) -> dict[int, float]:
        """By partition: until when the member surely has all that it acknowledges."""
        sharer, ledger = self._sharer, self._ledger
        assert sharer is not None
        sure = {}
        for number, kinds in said.items():
            sure[number] = min(ledger.held_until(sharer, number, offset) for _, offset, _ in kinds)
            for record, kind in kinds.items():
                if kind != RENEW:
                    del self._held[record]
                ledger.asking(sharer, [record], settles=kind in (ACCEPT, REJECT), renews=kind == RENEW)
        return sure

    def _acknowledge(self, *, close: bool = False) -> Call | None:
        """By itself."""
        version = self.rng.choice((1, 2))
        renews = version == 2 and self.rng.random() < 0.5
        said = self._say(may_renew=renews and not close)
        if not said and not close:
            return None
        sure = self._asking(said)
        sharer, session = self._sharer, self._session()
        if close:
            session["share_session_epoch"] = -1
        else:
            self._session_epoch += 1
        fields = {**session, "is_renew_ack": renews, "topics": self._topics(said)}
        return Call(ApiKey.SHARE_ACKNOWLEDGE, fields, ("acknowledge", sharer, said, sure), exactly=version)

    def _fetch(self) -> Call:
        rng = self.rng
        opens = self._session_epoch == 0
        version = rng.choice((1, 2))
        said: Acknowledged = {}
        if opens:
            assert self.socket is not None
            self._sharer = Sharer(self.name, self.socket.wire, self._member_until)
            self._fetched = set()
        elif self._held and rng.random() < 0.5:
            said = self._say(may_renew=False)
        sure = self._asking(said)
        new = set(self._assigned) - self._fetched
        gone = sorted(self._fetched - set(self._assigned))
        self._fetched = set(self._assigned)
        fields = {
            **self._session(),
            "max_wait": 300 if self.quiet else rng.choice((0, 50, 300)),
            "min_bytes": rng.choice((0, 1, 1, 500)),
            "max_bytes": rng.choice((1, 1_000, 100_000)),
            "max_records": rng.choice((1, 5, 500)),
            "batch_size": rng.choice((1, 5, 500)),
            "share_acquire_mode": rng.choice((0, 1)),
            "is_renew_ack": False,
            "topics": self._topics(said, new),
            "forgotten_topics_data": [{"topic_id": self._topic_id, "partitions": gone}] if gone else [],
        }
        self._session_epoch += 1
        return Call(
            ApiKey.SHARE_FETCH, fields, ("fetch", self._sharer, said, sure, set(self._assigned)), exactly=version
        )

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        getattr(self, f"_on_{call.context[0]}")(call, body)

    def _on_heartbeat(self, call: Call, body: Any) -> None:
        _, member_id, epoch = call.context
        error = body.error_code
        if epoch < 0 or member_id != self._member_id:
            if error and error not in _NO_MEMBER:
                self._excuse(error, "ShareGroupHeartbeat")
            return
        if error in _NO_MEMBER and not self._surely_a_member(call):
            self._forget()
            return
        if error:
            self._excuse(error, "ShareGroupHeartbeat")
            self.idle(0.1)
            return
        if body.member_epoch < self._epoch:
            raise Violation(f"{self.name}: the member epoch is {body.member_epoch} and was {self._epoch}")
        self._epoch = body.member_epoch
        self._in_doubt = False
        self._member_until = call.sent_at + self._session_s
        if self._sharer is not None:
            self._sharer.member_until = self._member_until
        if body.assignment is not None:
            self._assigned = []
            for topic in body.assignment.topic_partitions:
                self._topic_id = topic.topic_id
                self._assigned = sorted(topic.partitions)

    def _surely_a_member(self, call: Call) -> bool:
        known = not self._in_doubt and self.life == self.world.lives
        return known and call.context[2] > 0 and self.world.now < self._member_until

    def _on_acknowledge(self, call: Call, body: Any) -> None:
        _, sharer, said, sure = call.context
        if body.error_code:
            for kinds in said.values():
                self._ledger.refused(_settling(kinds), perhaps=False)
            self._session_refused(body.error_code, sharer, "ShareAcknowledge")
            return
        codes = {
            partition.partition_index: partition.error_code
            for topic in body.responses
            for partition in topic.partitions
        }
        self._acknowledged(call, sharer, said, sure, codes)

    def _on_fetch(self, call: Call, body: Any) -> None:
        _, sharer, said, sure, _ = call.context
        if body.error_code:
            for kinds in said.values():
                self._ledger.refused(_settling(kinds), perhaps=False)
            self._session_refused(body.error_code, sharer, "ShareFetch")
            return
        codes = {}
        for topic in body.responses:
            for data in topic.partitions:
                codes[data.partition_index] = data.acknowledge_error_code
        self._acknowledged(call, sharer, said, sure, codes)
        for topic in body.responses:
            for data in topic.partitions:
                if data.error_code:
                    self._excuse(data.error_code, "ShareFetch")
                    self.idle(0.1)
                elif data.acquired_records:
                    self._got(call, sharer, data)

    def _acknowledged(
        self, call: Call, sharer: Sharer, said: Acknowledged, sure: Mapping[int, float], codes: Mapping[int, int]
    ) -> None:
        for number, kinds in said.items():
            if number not in codes:
                raise Violation(f"{self.name}: no result for the acknowledgements of {self._ledger.topic}-{number}")
            error = codes[number]
            settling = _settling(kinds)
            if not error:
                self._ledger.settled(sharer, settling)
                self._ledger.renewed(sharer, [one for one, kind in kinds.items() if kind == RENEW], call.sent_at)
                continue
            self._ledger.refused(settling, perhaps=error in MACHINE)
            for record in kinds:
                self._held.pop(record, None)
            if error in (ErrorCode.invalid_record_state, ErrorCode.invalid_request):
                if self.world.now < sure[number] and sharer.is_sound(self.world):
                    raise Violation(f"{self.name}: {ErrorCode(error).name} for records that it has")
            elif error != ErrorCode.unknown_topic_or_partition or self.strict:
                self._excuse(error, "an acknowledgement")

    def _got(self, call: Call, sharer: Sharer, data: Any) -> None:
        number = data.partition_index
        values: dict[int, bytes] = {}
        view = memoryview(bytes(data.records or b""))
        for at, header in batches(view):
            check_crc(view, at, header)
            for record in records.records(view, at):
                assert record.value is not None
                values[record.offset] = record.value
        for acquired in data.acquired_records:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                if offset not in values:
                    raise Violation(
                        f"{self.name}: {offset} of {self._ledger.topic}-{number} is acquired and did not come"
                    )
                record_key = number, offset, values[offset]
                self._ledger.delivered(sharer, record_key, acquired.delivery_count, call.sent_at)
                if sharer is self._sharer:
                    self._held[record_key] = None

    # -- trouble ------------------------------------------------------------------------------------------------------------

    def _session_refused(self, error: int, sharer: Sharer, what: str) -> None:
        if error not in _NO_SESSION:
            self._excuse(error, what)
        elif sharer.is_sound(self.world):
            raise Violation(f"{self.name}: {ErrorCode(error).name}, and the session goes on")
        if sharer is self._sharer:
            self._end_session()
        self.idle(0.1)

    def _end_session(self) -> None:
        if self._sharer is not None:
            self._sharer.left = True
        self._sharer = None
        self._session_epoch = 0
        self._held.clear()

    def _forget(self) -> None:
        self._end_session()
        self._epoch = -1
        self._assigned = []

    def _gone(self) -> None:
        super()._gone()
        self._end_session()

    def lost(self, call: Call) -> None:
        kind = call.context[0]
        if kind == "heartbeat":
            self._in_doubt = True
            return
        for kinds in call.context[2].values():
            self._ledger.refused(_settling(kinds), perhaps=True)
        if kind == "fetch":
            self._ledger.missed(call.context[4])

    def _excuse(self, error: int, what: str) -> None:
        if self.strict or error not in MACHINE:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")


def _settling(kinds: Mapping[Record, int]) -> list[Record]:
    return [record for record, kind in kinds.items() if kind in (ACCEPT, REJECT)]


def _batches(kinds: Mapping[Record, int]) -> list[dict[str, Any]]:
    """Consecutive offsets with equal acknowledgements become a batch with one type."""
    rows: list[dict[str, Any]] = []
    for (_, offset, _), kind in sorted(kinds.items()):
        last = rows[-1] if rows else None
        if last is not None and last["last_offset"] == offset - 1:
            last["last_offset"] = offset
            last["acknowledge_types"].append(kind)
        else:
            rows.append({"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]})
    for batch in rows:
        if len(set(batch["acknowledge_types"])) == 1:
            del batch["acknowledge_types"][1:]
    return rows
