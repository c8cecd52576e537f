"""Bugs to be found: each plants one mistake into the real broker for as long as its context lasts.

A simulator that finds none of these is blind. The tests want each found within 100 seeds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from broker.cluster.nodes import Nodes
from broker.cluster.owner import Owner
from broker.errors import StorageError
from broker.kafka import sasl_session
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import reconciler
from broker.kafka.groups.consumer.membership import Membership, Saver
from broker.kafka.metering import Metered
from broker.kafka.producing import appending
from broker.kafka.service import KafkaSession
from broker.kafka.share.partition_entry import PartitionEntry
from broker.kafka.share.share_partition import SharePartition
from broker.kafka.transactions import executor
from broker.kafka.transactions.elsewhere import TransactionsElsewhere
from broker.kafka.transactions.executor import TransactionExecutor
from broker.kafka.transactions.marker_writer import Markers, MarkerWriter
from broker.kafka.transactions.neighbours import Neighbour, Neighbours
from broker.kafka.transactions.pending_offsets import PendingOffsets
from broker.kafka.transactions.transaction import Claim, State, Transaction
from broker.kafka.transactions.version_2 import TransactionsVersion2
from broker.metadata.writer import CatalogueWriter
from broker.network.connections import Turns
from broker.network.leased_sending import LeasedSending
from broker.network.memory_pool import MemoryPool
from broker.network.mute import Hold, MuteEvent, next_holds
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas, Throttling
from broker.pulsar.dispatch.by_key import ByKey
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.single_active import SingleActive
from broker.pulsar.producers.producer import Producer
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.subscriptions.subscriptions import Subscriptions
from broker.pulsar.topics.topic import Tail
from broker.security.acl_authorizer import AclAuthorizer
from broker.server import seat
from broker.server.seat import FeedWatch
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partitions import Partitions
from broker.shuffle.serving.read_ahead import ReadAhead
from broker.shuffle.serving.request_queue import RequestQueue
from broker.shuffle.serving.view import Credit
from broker.storage.journal.file_table import FileTable
from broker.storage.journal.shipper import Shipper
from broker.storage.log.durability import Durability
from broker.storage.log.log import Log
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.log.reading import LogReader
from broker.storage.log.state import LogState, Watchers
from broker.storage.log.transactions import Transactions
from broker.storage.recovery import recovery, verification
from broker.storage.recovery.leftovers import drop
from broker.storage.segments.index_file import TransactionIndex
from broker.storage.tier.tiered_disk import TieredDisk
from broker.storage.tier.uploads import Uploads
from broker.storage.upkeep.flusher import Flusher
from protocol.kafka.errors import ErrorCode
from tests.sim import planted_groups, planted_nodes, planted_pulsar, planted_vault
from tests.sim.disk import SimDisk
from tests.sim.journal import JournalTable, MemoryJournal


@attrs.frozen
class Bug:
    name: str
    what: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]  # from the right function to the wrong one
    scene: str = ""  # without which nothing of it can be seen
    faults: tuple[str, ...] = ()  # that have to come in every seed, because they are rare and nothing else shows it
    steps: int = 0  # with faults, if it takes more than usual

    @contextmanager
    def plant(self) -> Iterator[None]:
        right = vars(self.owner)[self.attribute]
        setattr(self.owner, self.attribute, self.make(right))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, right)


def _ack_before_fsync(_: Any) -> Any:
    def wait_durable(self: Flusher, log: Log, offset: int, callback: Any) -> None:
        callback(None)

    return wait_durable


def _durable_too_far(_: Any) -> Any:
    def flush_to(self: Durability, offset: int) -> None:
        state = self._state
        with self.sync_lock:
            if state.durable_offset >= offset:
                return
            if state.offline is not None:
                raise StorageError(str(state.offline))
            segments, state.dir_dirty = state.segments_from(state.durable_offset), False
            try:
                for segment in segments:
                    segment.log.get().sync()
                state.disk.sync_dir(state.dir)
            except OSError as error:
                raise state.go_offline(f"fsync failed: {error}") from error
            state.durable_offset = state.log_end_offset  # also writes during the fsync

    return flush_to


def _lost_wakeup(_: Any) -> Any:
    def submit(self: Processor, work: Any, target: Any, argument: Any) -> None:
        if self._get_ident() == self._ident:
            work(target, argument)
        else:
            self._inbox.append((work, target, argument))

    return submit


def _torn_tail_kept(_: Any) -> Any:
    def cut(source: Any, loaded: Any, number: int, position: int, end: int) -> None:
        loaded.segments[number].size = end
        drop(source, loaded, number + 1)

    return cut


def _unsynced_kept(right: Any) -> Any:
    def check_aborted(*args: Any) -> None:
        keep = TransactionIndex.keep
        TransactionIndex.keep = lambda self, count: None  # type: ignore[method-assign]
        try:
            right(*args)
        finally:
            TransactionIndex.keep = keep  # type: ignore[method-assign]

    return check_aborted


def _generation_unchecked(right: Any) -> Any:
    def check_generation(self: ClassicGroup, member_id: str, group_instance_id: str | None, generation: int) -> Any:
        return right(self, member_id, group_instance_id, self.generation)

    return check_generation


def _high_watermark_beyond(right: Any) -> Any:
    def read(self: LogReader, *args: Any, **kwargs: Any) -> Any:
        result = right(self, *args, **kwargs)
        return result._replace(high_watermark=result.high_watermark + 1)

    return read


def _failed_write_left(_: Any) -> Any:
    def undo_write(self: LogState, segment: Any, position: int, error: OSError) -> StorageError:
        segment.size = segment.log.get().size()
        return StorageError(f"records could not be written: {error}")

    return undo_write


def _commit_before_written(right: Any) -> Any:
    def commit(self: CatalogueWriter, group_id: str, offsets: Any, done: Any) -> None:
        # Answered by the writer all the same, but before it writes.
        self.change(lambda _: None, done)
        right(self, group_id, offsets, lambda failure: None)

    return commit


def _unreleased(_: Any) -> Any:
    return lambda self, buffer: None


def _uncounted(_: Any) -> Any:
    return lambda self, *args: None


def _without_bound(_: Any) -> Any:
    return property(lambda self: 2**60, lambda self, value: None)


def _credit_off_by_one(right: Any) -> Any:
    def take(self: Credit, data_type: int) -> bool:
        self.credits += 1
        taken = right(self, data_type)
        self.credits -= 1
        return bool(taken)

    return take


def _wakes_nobody(right: Any) -> Any:
    def add_credits(self: RequestQueue, credits: Any) -> None:
        for credit, name in credits:
            receiver = self.get(name)
            if receiver is not None:
                receiver.view.credit.add(credit)

    return add_credits


def _released_twice(right: Any) -> Any:
    def release(self: ResultPartition) -> None:
        memory, disk = self.holdings.memory, self.holdings.disk
        right(self)
        self.budget.give_back(self.owner, memory, disk)

    return release


def _resend_stored(right: Any) -> Any:
    def append(self: ResultPartition, subpartition: int, sequence: int, *args: Any) -> Any:
        part = self.part(subpartition)
        return right(self, subpartition, sequence if part.ended else max(sequence, part.next_sequence), *args)

    return append


def _spill_offset(right: Any) -> Any:
    def with_payloads(self: ReadAhead, taken: list[Any], file: Any) -> Any:
        beside = [(*one[:3], one[3] + 1 if isinstance(one[3], int) and one[4] else one[3], *one[4:]) for one in taken]
        return right(self, beside, file)

    return with_payloads


def _every_attempt_wins(right: Any) -> Any:
    def finish(self: Partitions, partition: ResultPartition, done: Any) -> None:
        def stored(error: OSError | None) -> None:
            if error is None and partition.finish():
                done(None)
            else:
                right(self, partition, done)

        if partition.pipelined:
            right(self, partition, done)
        else:
            partition.end_subpartitions()
            self._spiller.finish(partition, stored)

    return finish


def _never_blocked(right: Any) -> Any:
    def take(self: Credit, data_type: int) -> bool:
        taken = right(self, data_type)
        self.blocked = False
        return bool(taken)

    return take


def _marker_forgotten(right: Any) -> Any:
    def write(self: MarkerWriter, markers: Markers) -> None:
        if len(markers.partitions) > 1:
            markers = attrs.evolve(markers, partitions=frozenset(sorted(markers.partitions)[:-1]))
        right(self, markers)

    return write


def _any_epoch(right: Any) -> Any:
    def refuse(self: Transaction, claim: Claim) -> Any:
        return right(self, claim if self.state is None else attrs.evolve(claim, epoch=self.state.epoch))

    return refuse


def _same_epoch(right: Any) -> Any:
    def end_and_bump(self: Transaction, *args: Any) -> Any:
        result = right(self, *args)
        if isinstance(result, State) and self.state is not None:
            return attrs.evolve(result, epoch=self.state.epoch, last=None)
        return result

    return end_and_bump


def _one_addition(right: Any) -> Any:
    def add_partitions(self: Any, name: str, claim: Claim, partitions: Any, reply: Any) -> None:
        entry = self._registry.get(name)
        state = None if entry is None else entry.transaction.state
        if state is None or not state.partitions:
            right(self, name, claim, partitions, reply)
            return
        with entry.lock:
            self._executor.allow(state, partitions)
        reply(ErrorCode.none)

    return add_partitions


def _lso_beyond(right: Any) -> Any:
    return property(lambda log: min(log.high_watermark, right.fget(log) + 1))


def _offsets_on_abort(right: Any) -> Any:
    return lambda row, commit, catalogue: right(row, True, catalogue)


def _not_resumed(right: Any) -> Any:
    def carry_out(self: TransactionExecutor, entry: Any, state: Any, partitions: Any, if_open: bool = False) -> None:
        if not if_open:
            right(self, entry, state, partitions)

    return carry_out


def _answers_kept(right: Any) -> Any:
    def change(self: AclAuthorizer, added: Any, removed: Any) -> None:
        before = self._answers.of_resource
        right(self, added, removed)
        self._answers = attrs.evolve(self._answers, of_resource=before)

    return change


def _answer_lost_with_throttle(right: Any) -> Any:
    def send(self: Metered, request: Any, parts: Any) -> None:
        if self._throttle_ms() > 100:
            self.no_op(request)
        else:
            right(self, request, parts)

    return send


def _resumed_by_nobody(_: Any) -> Any:
    def throttle(self: Turns, connection: Any, event: MuteEvent) -> None:
        if not connection.closed:
            connection.holds = next_holds(connection.holds, event)

    return throttle


def _unmuted_by_answer(right: Any) -> Any:
    def answered(self: Turns, connection: Any) -> None:
        connection.holds &= ~int(Hold.THROTTLED)
        right(self, connection)

    return answered


_ALL = [
    Bug(
        "acl_cache_stale",
        "answers outlive the ACLs from which they came",
        AclAuthorizer,
        "_change",
        _answers_kept,
        scene="security",
    ),
    Bug("session_not_expired", "a login is valid for ever", sasl_session, "_expire", _uncounted, scene="security"),
    Bug(
        "unmuted_while_throttled",
        "an answer ends the throttle that came with it",
        Turns,
        "answered",
        _unmuted_by_answer,
        scene="quotas",
    ),
    Bug(
        "answer_lost_with_throttle",
        "a response that comes with a long throttle is lost",
        Metered,
        "send",
        _answer_lost_with_throttle,
        scene="quotas",
    ),
    Bug(
        "throttle_resumes_nobody",
        "a request that came during a throttle is not taken when it ends",
        Turns,
        "throttle",
        _resumed_by_nobody,
        scene="quotas",
    ),
    Bug("throttle_without_end", "no throttle ends", Throttling, "_due", _uncounted, scene="quotas"),
    Bug("ack_before_fsync", "acks=all is answered from the page cache", Flusher, "wait_durable", _ack_before_fsync),
    Bug(
        "durable_too_far",
        "what is appended during an fsync counts as synced by it",
        Durability,
        "flush_to",
        _durable_too_far,
    ),
    Bug("directory_not_synced", "a new file's name is not made durable", SimDisk, "sync_dir", _uncounted),
    Bug("torn_tail_kept", "recovery keeps what a crash left of the last batch", verification, "_cut", _torn_tail_kept),
    Bug(
        "unsynced_aborts_kept",
        "recovery searches in entries of a .txnindex that were never synced",
        recovery,
        "_check_aborted",
        _unsynced_kept,
        scene="aborts",
        faults=("power",),
        steps=15_000,
    ),
    Bug(
        "shown_before_fsync",
        "with visible=durable a consumer sees what is not fsynced",
        LogConfig,
        "shows_durable",
        lambda _: property(lambda self: False),
        scene="visible",
    ),
    Bug(
        "failed_write_left",
        "half a batch stays after a failed write",
        LogState,
        "undo_write",
        _failed_write_left,
        faults=("disk", "full"),
    ),
    Bug("sequence_unchecked", "sequence numbers are not looked at", ProducerState, "check", _uncounted),
    Bug("producers_forgotten", "recovery does not rebuild producer state", verification, "replay_batch", _uncounted),
    Bug(
        "high_watermark_beyond", "one more record is promised than is there", LogReader, "read", _high_watermark_beyond
    ),
    Bug(
        "generation_unchecked",
        "a member of an old generation may commit",
        ClassicGroup,
        "_check_generation",
        _generation_unchecked,
        scene="groups",
    ),
    Bug(
        "commit_before_written",
        "a commit is answered before it is durable",
        CatalogueWriter,
        "commit",
        _commit_before_written,
        scene="groups",
    ),
    Bug("forgotten_unmute", "a connection is unmuted and not resumed", Turns, "run_if_unmuted", _uncounted),
    Bug("lost_wakeup", "work is left in a processor's inbox without ringing", Processor, "submit", _lost_wakeup),
    Bug("append_wakes_nobody", "parked fetches are not told of an append", Watchers, "wake", _uncounted),
    Bug("responses_out_of_order", "requests of a connection run at once", KafkaSession, "in_flight_max", lambda _: 0),
    Bug("memory_not_released", "request memory is not given back", MemoryPool, "release", _unreleased),
    Bug(
        "answers_pile_up",
        "a client that does not read gets more",
        ProcessorSettings,
        "high_water_bytes",
        _without_bound,
    ),
    Bug("connection_not_counted_out", "a closed connection is still counted", ConnectionQuotas, "close", _uncounted),
    Bug(
        "credit_off_by_one",
        "one buffer more than there is credit for",
        Credit,
        "take",
        _credit_off_by_one,
        scene="shuffle",
    ),
    Bug(
        "resumption_not_waited_for", "a blocking event does not block", Credit, "take", _never_blocked, scene="shuffle"
    ),
    Bug(
        "credit_wakes_nobody",
        "credit is noted, and nobody goes on with it",
        RequestQueue,
        "add_credits",
        _wakes_nobody,
        scene="shuffle",
    ),
    Bug(
        "writer_held_back",
        "a writer that was held back is not told of room",
        ResultPartition,
        "announce_room",
        _uncounted,
        scene="shuffle",
    ),
    Bug(
        "released_twice",
        "a partition's memory is given back twice",
        ResultPartition,
        "release",
        _released_twice,
        scene="shuffle",
    ),
    Bug(
        "resend_stored",
        "a buffer that is sent again is there twice",
        ResultPartition,
        "append",
        _resend_stored,
        scene="shuffle",
    ),
    Bug(
        "spill_offset",
        "spilled buffers are read beside their place",
        ReadAhead,
        "with_payloads",
        _spill_offset,
        scene="shuffle",
    ),
    Bug(
        "marker_forgotten",
        "one partition gets no marker",
        MarkerWriter,
        "write",
        _marker_forgotten,
        scene="transactions",
    ),
    Bug("fencing_unchecked", "an older epoch may go on", Transaction, "_refuse", _any_epoch, scene="transactions"),
    Bug(
        "epoch_not_bumped",
        "the end of a transaction gives no new epoch",
        Transaction,
        "end_and_bump",
        _same_epoch,
        scene="transactions",
    ),
    Bug(
        "addition_forgotten",
        "of the partitions that batches add, only the first is stored",
        TransactionsVersion2,
        "add_partitions",
        _one_addition,
        scene="transactions",
    ),
    Bug(
        "lso_beyond",
        "one record is called stable that is not",
        Log,
        "last_stable_offset",
        _lso_beyond,
        scene="transactions",
    ),
    Bug(
        "offsets_on_abort",
        "an abort commits the offsets",
        executor,
        "_complete",
        _offsets_on_abort,
        scene="transactions",
    ),
    Bug(
        "decision_not_resumed",
        "a start carries out nothing",
        TransactionExecutor,
        "_carry_out",
        _not_resumed,
        scene="transactions",
    ),
    Bug(
        "transaction_without_end",
        "no transaction times out",
        TransactionExecutor,
        "_arm",
        _uncounted,
        scene="transactions",
    ),
    Bug(
        "aborted_untold",
        "readers are not told which records were aborted",
        Transactions,
        "aborted",
        lambda _: lambda *args: [],
        scene="transactions",
    ),
    Bug(
        "every_attempt_wins",
        "an attempt that comes second wins, too",
        Partitions,
        "finish",
        _every_attempt_wins,
        scene="shuffle",
    ),
    Bug(
        "pulsar_receipt_when_appended",
        "a receipt leaves before its message is durable",
        Producer,
        "owe",
        planted_pulsar.receipts_when_appended,
        scene="pulsar",
    ),
    Bug(
        "pulsar_two_are_exclusive",
        "an exclusive subscription takes a second consumer",
        Subscriptions,
        "_join",
        planted_pulsar.all_are_admitted,
        scene="pulsar",
    ),
    Bug(
        "pulsar_permits_twice",
        "permits count twice for a single consumer",
        SingleActive,
        "flow",
        planted_pulsar.permits_twice,
        scene="pulsar",
    ),
    Bug(
        "pulsar_permits_twice_shared",
        "permits count twice for consumers that share",
        ManyConsumers,
        "flow",
        planted_pulsar.permits_twice,
        scene="pulsar",
    ),
    Bug(
        "pulsar_small_flow_forgotten",
        "a grant of one permit is forgotten",
        ManyConsumers,
        "flow",
        planted_pulsar.small_flows_forgotten,
        scene="pulsar",
    ),
    Bug(
        "pulsar_read_twice",
        "the last entry of a read is read again",
        SingleActive,
        "read_done",
        planted_pulsar.read_twice,
        scene="pulsar",
    ),
    Bug(
        "pulsar_left_behind",
        "what a consumer has that leaves is given to nobody else",
        ManyConsumers,
        "_release",
        planted_pulsar.left_behind,
        scene="pulsar",
    ),
    Bug(
        "pulsar_keys_unguarded",
        "a key moves to another consumer before the first has acknowledged its messages",
        ByKey,
        "__init__",
        planted_pulsar.keys_unguarded,
        scene="pulsar",
    ),
    Bug(
        "pulsar_delays_ignored",
        "delayed messages are delivered at once",
        DelayedTracker,
        "is_due",
        planted_pulsar.always_due,
        scene="pulsar",
    ),
    Bug(
        "pulsar_ack_before_saved",
        "an acknowledgement is answered before the cursor is durable",
        Saving,
        "save",
        planted_pulsar.confirmed_before_saved,
        scene="pulsar",
    ),
    Bug(
        "pulsar_tail_unwatched",
        "subscriptions are not told of what Kafka's producers append",
        Tail,
        "add",
        planted_pulsar.unwatched,
        scene="pulsar",
    ),
    Bug(
        "share_answer_before_saved",
        "acknowledgements of shared records are answered before they are durable",
        PartitionEntry,
        "acknowledge",
        planted_groups.answered_before_saved,
        scene="share",
    ),
    Bug(
        "share_released_lost",
        "a record that is released is given to nobody else",
        SharePartition,
        "_fail",
        planted_groups.released_lost,
        scene="share",
    ),
    Bug(
        "share_lock_without_end",
        "nobody looks when the lock on a record ends",
        PartitionEntry,
        "arm",
        planted_groups.locks_without_end,
        scene="share",
    ),
    Bug(
        "share_lock_ends_early",
        "the lock on a record ends before its time",
        SharePartition,
        "configure",
        planted_groups.locks_end_early,
        scene="share",
    ),
    Bug(
        "share_done_forgotten",
        "a start forgets what was accepted out of order",
        SharePartition,
        "restore",
        planted_groups.done_forgotten,
        scene="share",
    ),
    Bug(
        "consumer_given_before_released",
        "a partition is given to another member before its owner has given it up",
        reconciler,
        "_still_has",
        planted_groups.given_before_released,
        scene="consumers",
    ),
    Bug(
        "consumer_told_before_saved",
        "a member is told its partitions before they are durable",
        Saver,
        "answer",
        planted_groups.told_before_saved,
        scene="consumers",
    ),
    Bug(
        "consumer_session_without_end",
        "a member that is silent keeps its partitions",
        Membership,
        "expect_heartbeat",
        planted_groups.sessions_without_end,
        scene="consumers",
    ),
    Bug(
        "vault_shown_before_shipped",
        "a consumer sees what is on the machine only",
        LogConfig,
        "shows_durable",
        planted_vault.shown_before_shipped,
        scene="vault",
    ),
    Bug(
        "vault_acks_1_at_once",
        "acks=1 is answered when only the machine has the records",
        appending,
        "_awaits",
        planted_vault.acks_1_at_once,
        scene="vault",
    ),
    Bug(
        "vault_row_before_object",
        "a row is appended before its object is stored",
        Shipper,
        "_persist",
        planted_vault.row_before_object,
        scene="vault",
    ),
    Bug(
        "vault_out_of_order",
        "a flush is committed before the one before it",
        Shipper,
        "_commit",
        planted_vault.out_of_order,
        scene="vault",
        faults=("store",),
    ),
    Bug(
        "vault_epoch_unchecked",
        "the journal takes rows of an owner that was replaced",
        MemoryJournal,
        "_check_epoch",
        planted_vault.epoch_unchecked,
        scene="vault",
        faults=("zombie",),
    ),
    Bug(
        "vault_epoch_stays",
        "a take-over leaves the epoch as it is: there are two owners",
        JournalTable,
        "take_over",
        planted_vault.epoch_stays,
        scene="vault",
        faults=("zombie",),
    ),
    Bug(
        "vault_answers_without_lease",
        "answers leave although another broker may have taken over",
        LeasedSending,
        "flush",
        planted_vault.answers_without_lease,
        scene="vault",
        faults=("zombie",),
    ),
    Bug(
        "vault_answers_at_once",
        "the next owner answers while the one before may still do so",
        Owner,
        "wait_to_answer",
        planted_vault.answers_at_once,
        scene="vault",
        faults=("zombie",),
        steps=6000,
    ),
    Bug(
        "vault_removed_too_early",
        "rows are removed before it is durable that no file needs them",
        Shipper,
        "tidy",
        planted_vault.removed_too_early,
        scene="vault",
        faults=("store",),
    ),
    Bug(
        "vault_forgotten_before_adopted",
        "the journal forgets a segment that the catalogue does not have yet",
        TieredDisk,
        "adopt",
        planted_vault.forgotten_before_adopted,
        scene="vault",
    ),
    Bug(
        "vault_names_late",
        "names are shipped with the flush after their own",
        FileTable,
        "take_names",
        planted_vault.names_late,
        scene="vault",
    ),
    Bug(
        "vault_objects_before_rows",
        "objects are deleted before the rows that name them",
        Shipper,
        "tidy",
        planted_vault.objects_before_rows,
        scene="vault",
    ),
    Bug(
        "vault_open_segment_uploaded",
        "a segment is uploaded while records are appended to it",
        Uploads,
        "waiting",
        planted_vault.open_segment_uploaded,
        scene="vault",
    ),
    Bug(
        "nodes_change_missed",
        "a node takes a change for known that it has not read",
        FeedWatch,
        "_take_in",
        planted_nodes.change_missed,
        scene="nodes",
    ),
    Bug(
        "nodes_notify_lost",
        "nobody looks by himself, and a NOTIFY is lost",
        seat,
        "_LOOK_S",
        planted_nodes.never_looks,
        scene="nodes",
        faults=("unheard",),
    ),
    Bug(
        "nodes_not_settled",
        "an administrator is answered before the other nodes have the change",
        Nodes,
        "settle",
        planted_nodes.not_settled,
        scene="nodes",
    ),
    Bug(
        "nodes_silence_is_done",
        "a node that has not answered counts as having its markers",
        Neighbour,
        "_is_done",
        planted_nodes.silence_is_done,
        scene="nodes",
        faults=("kill", "cut"),
    ),
    Bug(
        "nodes_marker_to_nobody",
        "markers of other nodes are written here, where the partition is not",
        Neighbours,
        "write",
        planted_nodes.marker_to_nobody,
        scene="nodes",
    ),
    Bug(
        "nodes_groups_not_told",
        "the groups of other nodes do not hear how a transaction has ended",
        Neighbours,
        "write",
        planted_nodes.groups_not_told,
        scene="nodes",
    ),
    Bug(
        "nodes_verification_skipped",
        "a batch is appended without asking the node that coordinates the transaction",
        TransactionsElsewhere,
        "ask",
        planted_nodes.verification_skipped,
        scene="nodes",
    ),
    Bug(
        "nodes_everybody_coordinates",
        "each node takes itself for the coordinator of every transactional id and group",
        Nodes,
        "coordinates",
        planted_nodes.everybody_coordinates,
        scene="nodes",
    ),
    Bug(
        "nodes_pending_always_committed",
        "offsets of an aborted transaction are committed at the group's node",
        PendingOffsets,
        "end",
        planted_nodes.pending_always_committed,
        scene="nodes",
    ),
    Bug(
        "nodes_answers_without_lease",
        "answers leave although another process may have the node",
        LeasedSending,
        "flush",
        planted_nodes.answers_without_lease,
        scene="nodes",
        faults=("zombie",),
    ),
    Bug(
        "nodes_epoch_stays",
        "a take-over leaves the epoch as it is: two processes are one node",
        JournalTable,
        "take_over",
        planted_vault.epoch_stays,
        scene="nodes",
        faults=("zombie",),
    ),
]
PLANTED = {bug.name: bug for bug in _ALL}
