"""Consume, transform, produce: reads a partition from where its group is, writes into others, and commits with that how far it
has read. Two of them have one transactional id and fence each other; whoever was fenced comes again.
"""

from collections.abc import Generator, Sequence
from typing import Any

import attrs

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka_connection import fetch_fields
from tests.sim.clients.client import Call, Client
from tests.sim.clients.offsets import fetched_offsets, offset_fetch
from tests.sim.clients.routed import Routed
from tests.sim.clients.txn_producer import (
    FATAL,
    RETRIABLE,
    VERSION_2,
    Identity,
    add_partitions,
    error_of,
    produce,
    send_offset,
)
from tests.sim.clients.txn_reader import read_committed
from tests.sim.ledger import Ledger, Partition, Txn
from tests.sim.world import Violation

_TIMEOUT_MS = 20_000


class _Fenced(Exception):
    """Another one has the transactional id, or the transaction is lost."""


@attrs.define(eq=False)
class Job:
    """What those with one transactional id have in common. ``left``: transactions with records that are to be committed."""

    name: str
    source: Partition
    targets: Sequence[Partition]
    left: int
    values: dict[int, bytes] = attrs.Factory(dict)  # of the source, by offset


class Transformer(Routed, Client):
    def __init__(self, *args: Any, ledger: Ledger, job: Job, version_2: bool) -> None:
        super().__init__(*args)
        self._ledger = ledger
        self._job = job
        self._version_2 = version_2
        self._txn: Txn | None = None
        self._script = self._run()
        self._answer: Any = None
        self._began = False
        self._finishing = False
        self._ended = False

    def finish(self) -> None:
        """Nobody writes any more into what it reads: begin nothing more."""
        self._finishing = True

    @property
    def done(self) -> bool:
        return self._ended

    # -- a script that asks and waits for the answer; None: it was lost, or it was time to wait --------------------------------

    def next_call(self) -> Call | None:
        if self._job.source[0] not in self.history.ready:
            self.idle(0.1)
            return None
        answer, self._answer = self._answer, None
        if not self._began:
            self._began = True
            return next(self._script)
        return self._script.send(answer)

    def answered(self, call: Call, body: Any) -> None:
        self._answer = body

    def lost(self, call: Call) -> None:
        self._answer = None

    def _wait(self, seconds: float) -> Generator[Call | None, Any, None]:
        self.idle(seconds)
        yield None

    def _insist(self, call: Call) -> Generator[Call | None, Any, Any]:
        """The answer without an error."""
        if self._version_2:
            call.exactly = VERSION_2.get(call.key, -1)
        while True:
            body = yield attrs.evolve(call)
            error = 0 if body is None else error_of(call.key, body)
            if body is not None and error in (0, ErrorCode.duplicate_sequence_number):
                return body
            if error in FATAL:
                raise _Fenced
            if error and error not in RETRIABLE:
                raise Violation(f"{self.name}: {ErrorCode(error).name} for {call.key.name}")
            yield from self._wait(0.05)

    def _run(self) -> Generator[Call | None, Any, None]:
        while not self._finishing:
            try:
                yield from self._transform()
            except _Fenced:
                txn, self._txn = self._txn, None
                if txn is not None:
                    txn.given_up()
                yield from self._wait(self.rng.random() * 2.0)
        self._ended = True
        while True:
            yield from self._wait(1.0)

    def _transform(self) -> Generator[Call | None, Any, None]:
        job = self._job
        identity = Identity(job.name)
        fields = {
            "transactional_id": job.name,
            "transaction_timeout": _TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        body = yield from self._insist(Call(ApiKey.INIT_PRODUCER_ID, fields))
        identity.producer_id, identity.epoch = body.producer_id, body.producer_epoch
        while not self._finishing:
            if job.left <= 0:
                yield from self._wait(0.5)
                continue
            begin = yield from self._position()
            end = yield from self._read(begin)
            if not any(begin <= offset < end for offset in job.values):
                yield from self._wait(self.rng.random())
                continue
            yield from self._write(identity, begin, end)

    def _position(self) -> Generator[Call | None, Any, int]:
        topic, number = self._job.source
        while True:
            call = offset_fetch(self._job.name, topic, [number], 0, stable=True)
            body = yield call
            if body is not None:
                ((_, offset),) = fetched_offsets(self, call, body, topic)
                if offset is not None:
                    return max(0, offset)
            yield from self._wait(0.05)

    def _read(self, begin: int) -> Generator[Call | None, Any, int]:
        """Up to what is stable; the offset after that."""
        topic, number = self._job.source
        position = begin
        while True:
            body = yield Call(ApiKey.FETCH, fetch_fields(topic, [number], position, isolation_level=1))
            data = None if body is None or not body.responses else body.responses[0].partitions[0]
            if data is None or data.error_code:
                yield from self._wait(0.05)
                continue
            for after, found in read_committed(data, position, f"{self.name}: {self._job.source}"):
                for offset, value, is_aborted in found:
                    if is_aborted:
                        self._ledger.hidden(self._job.source, offset, value, self.name)
                        continue
                    self._ledger.visible(self._job.source, offset, value, self.name)
                    if self._job.values.setdefault(offset, value) != value:
                        raise Violation(f"{self.name}: {self._job.source} has another value at {offset} than before")
                position = after
            if position >= data.last_stable_offset:
                return position

    def _write(self, identity: Identity, begin: int, end: int) -> Generator[Call | None, Any, None]:
        job, rng = self._job, self.rng
        txn = self._txn = self._ledger.begin(self.name)
        txn.read[job.source] = tuple(value for offset, value in sorted(job.values.items()) if offset < end)
        txn.claim = ("offsets", job.name, *job.source, begin)
        chosen = rng.sample(list(job.targets), rng.randrange(1, len(job.targets) + 1))
        if not self._version_2:
            yield from self._insist(add_partitions(identity, chosen))
        for partition in chosen:
            values = [f"{self.name}/{txn.number}/{partition[1]}/{n}".encode() for n in range(rng.randrange(1, 3))]
            self._ledger.writing(txn, partition, values)
            sequence = identity.sequences.get(partition, 0)
            yield from self._insist(produce(identity, partition, values, sequence, self.world.now))
            identity.sequences[partition] = sequence + len(values)
        if not self._version_2:
            yield from self._insist(Call(ApiKey.ADD_OFFSETS_TO_TXN, {**identity.header(), "group_id": job.name}))
        yield from self._insist(send_offset(identity, job.name, job.source, end))
        commit = rng.random() < 0.8
        txn.commit_asked = commit
        self._ledger.on_decision()
        body = yield from self._insist(Call(ApiKey.END_TXN, {**identity.header(), "committed": commit}))
        self._txn = None
        if self._version_2:
            identity.goes_on(body.producer_id, body.producer_epoch)
        if commit:
            txn.committed("EndTxn says so")
            job.left -= 1
        else:
            txn.aborted("EndTxn says so")

    def _excuse(self, error: int, what: str) -> None:
        if error not in RETRIABLE:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")
