"""Transactional producers: begin, write, send offsets, commit or abort; die in the middle, and come again under the same id.

They do so by the classic flow or by transactions version 2 (KIP-890), and change from one to the other.

One client may be several producers that end together by one EndTxns, as the tasks of a micro-batch do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import produce_fields
from tests.sim.clients.client import Call, Client
from tests.sim.clients.offsets import fetched_offsets, offset_fetch
from tests.sim.ledger import Ledger, Partition, Txn
from tests.sim.world import Violation

# Asked again.
RETRIABLE = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.unstable_offset_commit,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,  # so Produce calls a coordinator that is not available
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
    }
)
# The transaction is lost, and who wrote it must begin again: somebody or the end of its time has taken it away.
FATAL = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.transaction_abortable,
    }
)
# The versions that add partitions and groups to a transaction implicitly, and EndTxn's version that answers with the next epoch.
VERSION_2 = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}


@attrs.define
class Identity:
    """One transactional id, and as whom it writes."""

    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    used: bool = False  # it has had a transaction
    before: tuple[int, int] | None = None  # as whom it wrote, if it says so when it comes again (KIP-360)
    sequences: dict[Partition, int] = attrs.Factory(dict)

    def goes_on(self, producer_id: int, epoch: int) -> "Identity":
        """It has got another epoch. Returns the previous epoch."""
        before = attrs.evolve(self, sequences=dict(self.sequences))
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences.clear()
        return before

    def header(self) -> dict[str, Any]:
        """The first fields of a producer's requests, under the names of all versions."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


def produce(identity: Identity, partition: Partition, values: Sequence[bytes], sequence: int, now_s: float) -> Call:
    now_ms = int((now_s + 1_700_000_000) * 1000)
    batch = build_batch(
        [(b"k", value, [], now_ms) for value in values],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )
    topic, number = partition
    fields = produce_fields(topic, batch, number, transactional_id=identity.transactional_id)
    return Call(ApiKey.PRODUCE, fields)


def add_partitions(identity: Identity, partitions: Sequence[Partition]) -> Call:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return Call(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        {
            **{f"v3_and_below_{name}": value for name, value in identity.header().items()},
            "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        },
    )


def send_offset(identity: Identity, group: str, partition: Partition, offset: int) -> Call:
    one = {"partition_index": partition[1], "committed_offset": offset}
    return Call(
        ApiKey.TXN_OFFSET_COMMIT,
        {
            **identity.header(),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": partition[0], "partitions": [one]}],
        },
    )


def error_of(key: ApiKey, body: Any) -> int:
    """Of an answer about one thing."""
    if key == ApiKey.PRODUCE:
        return int(body.responses[0].partition_responses[0].error_code)
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        results = [one for topic in body.results_by_topic_v3_and_below for one in topic.results_by_partition]
        return int(next((result.partition_error_code for result in results if result.partition_error_code), 0))
    if key == ApiKey.TXN_OFFSET_COMMIT:
        return int(body.topics[0].partitions[0].error_code)
    return int(body.error if key == ApiKey.END_TXNS else body.error_code)


class TxnProducer(Client):
    """``on_death`` gets the identities of a producer that has died, once its successor has taken their place.

    ``version_2``: whether it begins with transactions version 2, which several producers that end together do not have.
    ``transactions``: how many are to be committed; ``deserts``: then it begins another one and is never heard of again.
    ``commits``: how many of its transactions it means to commit, of 1.
    """

    def __init__(
        self,
        *args: Any,
        ledger: Ledger,
        partitions: Sequence[Partition],
        identities: int,
        version_2: bool,
        transactions: int,
        timeout_ms: int,
        mortality: float,
        deserts: bool,
        commits: float,
        on_death: Callable[[list[Identity], Txn], None],
    ) -> None:
        super().__init__(*args)
        self.ledger = ledger
        self.group = f"of-{self.name}"
        self._partitions = list(partitions)
        self._left = transactions
        self._timeout_ms = timeout_ms
        self._mortality = mortality
        self._deserts = deserts
        self._commits = commits
        self._on_death = on_death
        self._version_2 = version_2
        self._identities = [Identity(f"{self.name}-{n}") for n in range(identities)]
        self._dead: tuple[list[Identity], Txn] | None = None
        self._txn: Txn | None = None
        self._plan: list[Callable[[], Call]] = []  # the remaining requests of the present transaction
        self._looks = False  # at its committed offset, before it begins the next one
        self._unheard = 0  # InitProducerIds without an answer: each may yet arrive, and fence those that came after it

    @property
    def done(self) -> bool:
        return self._left <= 0 and self._txn is None and self._dead is None and (self.closed or not self._deserts)

    # -- asking -------------------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        if self._partitions[0][0] not in self.history.ready or self.rng.random() < 0.3:
            self.idle(self.rng.random() * 0.1)
            return None
        if self.done:
            self.idle(1.0)
            return None
        for identity in self._identities:
            if identity.producer_id < 0:
                return self._init(identity)
        if self._dead is not None:  # all are fenced now, and their open transactions have been ended
            self._on_death(*self._dead)
            self._dead = None
        if self._txn is None:
            if self._looks:
                return offset_fetch(self.group, self._partitions[0][0], [self._partitions[0][1]], 0, stable=True)
            self._begin()
        if self._left <= 0 and len(self._plan) < 4:
            self._desert()
            return None
        if not self.quiet and self.rng.random() < self._mortality:
            self._die()
            return None
        call = self._plan[0]()
        if self._version_2:
            call.exactly = VERSION_2.get(call.key, -1)
        return call

    def _init(self, identity: Identity) -> Call:
        return Call(
            ApiKey.INIT_PRODUCER_ID,
            {
                "transactional_id": identity.transactional_id,
                "transaction_timeout": self._timeout_ms,
                "producer_id": identity.before[0] if identity.before else -1,
                "producer_epoch": identity.before[1] if identity.before else -1,
            },
            identity,
        )

    def _begin(self) -> None:
        rng = self.rng
        txn = self._txn = self.ledger.begin(self.name)
        self._plan = []
        if len(self._identities) == 1 and rng.random() < 0.1:
            self._version_2 = not self._version_2
        parties: list[Identity] = []
        for index, identity in enumerate(self._identities):
            chosen = rng.sample(self._partitions, rng.randrange(0 if index else 1, len(self._partitions) + 1))
            if not chosen and identity.used:
                continue
            parties.append(identity)
            if not chosen:  # a task without rows
                continue
            identity.used = True
            if not self._version_2:
                self._plan.append(lambda identity=identity, chosen=chosen: add_partitions(identity, chosen))  # type: ignore[misc]
            for partition in chosen * rng.choice((1, 1, 2)):
                self._plan.append(self._batch(txn, identity, partition, len(self._plan)))
        first = self._identities[0]
        if rng.random() < 0.6:
            txn.offset = txn.number + 1
            group = {**first.header(), "group_id": self.group}
            if not self._version_2:
                self._plan.append(lambda: Call(ApiKey.ADD_OFFSETS_TO_TXN, group))
            self._plan.append(lambda: send_offset(first, self.group, self._partitions[0], txn.offset))
        commit = rng.random() < (0.8 if self.quiet else self._commits)
        self._plan.append(lambda: self._end(txn, parties, commit))

    def _batch(self, txn: Txn, identity: Identity, partition: Partition, step: int) -> Callable[[], Call]:
        values = [
            f"{self.name}/{txn.number}/{step}/{n}/".encode() + b"x" * self.rng.randrange(200)
            for n in range(self.rng.randrange(1, 4))
        ]
        written = False

        def call() -> Call:
            nonlocal written
            if not written:
                written = True
                self.ledger.writing(txn, partition, values)
            sequence = identity.sequences.get(partition, 0)
            made = produce(identity, partition, values, sequence, self.world.now)
            made.context = (identity, partition, sequence + len(values))
            return made

        return call

    def _end(self, txn: Txn, parties: list[Identity], commit: bool) -> Call:
        txn.commit_asked = txn.commit_asked or commit
        self.ledger.on_decision()
        if len(self._identities) > 1:
            members = [own_apis.Member(party.transactional_id, party.producer_id, party.epoch) for party in parties]
            return Call(ApiKey.END_TXNS, {"members": members, "committed": commit}, commit)
        return Call(ApiKey.END_TXN, {**self._identities[0].header(), "committed": commit}, commit)

    def _die(self) -> None:
        """Another producer takes its place; nobody tells the broker."""
        self.world.note(f"{self.name} dies in {self._txn}")
        assert self._txn is not None
        self._lose()
        self.disconnect(rudely=self.rng.random() < 0.5)

    def _lose(self, goes_on: bool = False) -> None:
        """The transaction is out of our hands. ``goes_on``: the same producer takes the next epoch, and says who it was."""
        txn, self._txn = self._txn, None
        assert txn is not None
        txn.given_up()
        self._looks = True
        if self._dead is None:
            self._dead = self._identities, txn
        self._identities = [
            Identity(identity.transactional_id, before=(identity.producer_id, identity.epoch) if goes_on else None)
            for identity in self._identities
        ]

    def _desert(self) -> None:
        """Leave a transaction open for good."""
        txn, self._txn = self._txn, None
        assert txn is not None
        self.world.note(f"{self.name} deserts {txn}")
        txn.given_up()
        self.close()

    def lost(self, call: Call) -> None:
        self._unheard += call.key == ApiKey.INIT_PRODUCER_ID
        # It never hears the outcome of its transaction: the worst moment to die.
        if call.key in (ApiKey.END_TXN, ApiKey.END_TXNS) and not self.quiet and self.rng.random() < 0.5:
            self.world.note(f"{self.name} dies with the answer to {self._txn}")
            self._lose()

    # -- answers ------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, body: Any) -> None:
        if call.key == ApiKey.OFFSET_FETCH:
            for _, offset in fetched_offsets(self, call, body, self._partitions[0][0]):
                if offset is not None:
                    self._looks = False
                    if not self.ledger.machine_failed():  # else the decision may have to wait for its markers
                        self.ledger.offset_found(self.name, offset, "OffsetFetch")
            return
        error = error_of(call.key, body)
        if call.key == ApiKey.INIT_PRODUCER_ID:
            if not error:
                call.context.producer_id, call.context.epoch = body.producer_id, body.producer_epoch
            elif call.context.before and error in FATAL:
                call.context.before = None  # somebody else has had it since
            else:
                self._excuse(error, "InitProducerId")
            return
        if error == ErrorCode.duplicate_sequence_number and call.key == ApiKey.PRODUCE:
            error = 0
        if not error:
            self._succeeded(call, body)
        elif error in FATAL:
            self._check_fatal(error, call)
            self.world.note(f"{self.name}: {ErrorCode(error).name}, {self._txn} is lost")
            self._lose(goes_on=self.rng.random() < 0.5)
        else:
            self._excuse(error, call.key.name)

    def _succeeded(self, call: Call, body: Any) -> None:
        txn = self._txn
        assert txn is not None
        del self._plan[0]
        if call.key == ApiKey.PRODUCE:
            identity, partition, sequence = call.context
            identity.sequences[partition] = sequence
        if self._plan:
            return
        self._txn = None
        if call.exactly >= 0:
            before = self._identities[0].goes_on(body.producer_id, body.producer_epoch)
            if self.rng.random() < 0.5:
                self._on_death([before], txn)  # its requests come once more, late
        if call.context:
            txn.committed("EndTxn says so")
            self._left -= 1
        else:
            txn.aborted("EndTxn says so")
        self._looks = self.rng.random() < 0.5
        if not (
            self.ledger.machine_failed() or self.ledger.offsets_later
        ):  # else its markers come later, its offsets then
            self.ledger.offset_found(self.name, self.ledger.stored(self.group), "the catalogue")
        self.history.promised()

    def _check_fatal(self, error: int, call: Call) -> None:
        """Nobody has taken it away but the end of its time, or the producer itself: by a request on a connection that it has
        given up, which arrives later than the same request on the next one."""
        assert self._txn is not None
        if self._unheard and error in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch):
            self._unheard -= 1
            return
        late = self.world.now - self._txn.started >= 0.9 * self._timeout_ms / 1000
        if not (late or self.ledger.clock_jumps or self.ledger.machine_failed()):
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {call.key.name} of {self._txn}")

    def _excuse(self, error: int, what: str) -> None:
        # Something is still being carried out. For ever, it may not: then nobody gets to the end.
        concurrent = error in (ErrorCode.concurrent_transactions, ErrorCode.unstable_offset_commit)
        # So a group's coordinator calls it while the end of the transaction, whose time is over, is being carried out.
        concurrent |= what == ApiKey.TXN_OFFSET_COMMIT.name and error == ErrorCode.coordinator_not_available
        if error not in RETRIABLE or (self.strict and not concurrent):
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {what} of {self._txn}")
        self.idle(0.05)
