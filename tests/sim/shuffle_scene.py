"""The shuffle service's part of a simulation: its settings, its writers and readers, and its invariants."""

from typing import TYPE_CHECKING, Any

from broker.shuffle.partition.budget import IN_MEMORY_BYTES, PARTITION_BYTES, READER_BYTES, SUBPARTITION_BYTES
from broker.shuffle.service import _State
from protocol.shuffle.ids import Generation
from tests.sim.clients.shuffle_client import SHUFFLE_PORT
from tests.sim.clients.shuffle_reader import ShuffleReader
from tests.sim.clients.shuffle_steward import Steward
from tests.sim.clients.shuffle_vandal import ShuffleVandal
from tests.sim.clients.shuffle_writer import Writer
from tests.sim.clients.stream import StreamClient
from tests.sim.jobs import Attempt, Range, ShuffleWork
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.host import Host

_DIRECTORY = "/data/shuffle"
_PAYLOAD_BYTES_MAX = 21_000
# For 100 attempts of 6 subpartitions, and those who read them.
_STRUCTURES_BYTES = 100 * (PARTITION_BYTES + 6 * (SUBPARTITION_BYTES + READER_BYTES))


class ShuffleScene:
    def __init__(self, world: World, host: "Host", rng: Any) -> None:
        self.world = world
        self.host = host
        self.generation = rng.choice((Generation.V2_0, Generation.V2_0, Generation.V1_19, Generation.V1_16))
        self.work = ShuffleWork(world, rng.randrange(2, 6), single=self.generation is Generation.V1_16)
        self.work.would_survive = self._would_survive
        self.retention_s = rng.choice((0.0, 0.0, 2.0))
        window = rng.choice((4, 5, 16))
        host.listeners.append(f"shuffle://127.0.0.1:{SHUFFLE_PORT}?generation={self.generation.value}")
        host.small = {
            # What is known of each buffer must have room beside the payloads, and new partitions in 3/4 of all.
            "shuffle_memory_bytes": rng.choice((3_000, 40_000, 1_000_000))
            + IN_MEMORY_BYTES * self.work.buffers_most
            + _STRUCTURES_BYTES,
            "shuffle_disk_bytes": rng.choice((-1, self.work.bytes_most)),
            "shuffle_released_bytes": rng.choice((0, 100_000, 1_000_000)),
            "shuffle_pipelined_bytes": rng.choice((1, 5_000, 1_000_000)),
            "shuffle_write_credit_buffers": window,
            "shuffle_partition_request_timeout_ms": rng.choice((100, 1_000, 10_000)),
            "shuffle_pipelined_retention_ms": int(self.retention_s * 1_000),
            "shuffle_writer_retention_ms": rng.choice((200, 2_000, 5_000)),
            "shuffle_blocking_ttl_ms": 30 * 86_400_000,
        }
        self._populate(rng)

    def _populate(self, rng: Any) -> None:
        common = (self.world, self.host.fabric, self.work, self.generation)
        jobs = self.work.jobs
        readers = rng.randrange(1, 3)
        parts: list[list[Range]] = [[] for _ in range(readers)]
        for job in jobs:
            for part in job.ranges:
                rng.choice(parts).append(part)
        count = rng.randrange(1, 3)
        self.writers = [Writer(f"writer-{n}", *common, jobs=jobs[n::count]) for n in range(count)]
        racing = [job for job in jobs if job.racing]
        if racing:
            self.writers.append(Writer("rival", *common, jobs=racing, rival=True))
        self.readers = [
            ShuffleReader(f"shuffle-reader-{n}", *common, parts=of, retention_s=self.retention_s)
            for n, of in enumerate(parts)
        ]
        self.steward = Steward("steward", *common)
        self.clients: list[StreamClient] = [*self.writers, *self.readers, self.steward]
        self.vandals = [ShuffleVandal("shuffle-vandal", *common)] if rng.random() < 0.3 else []

    def _would_survive(self, attempt: Attempt) -> bool:
        longest = max((buffer.payload for part in attempt.script for buffer in part), key=len)
        survives = self.host.would_survive
        return survives(_DIRECTORY, b"RBSP\x01" + attempt.id) and survives(_DIRECTORY, longest)

    # -- inside -------------------------------------------------------------------------------------------------------------

    def check(self, server: Any) -> None:
        """At any moment: memory is bounded by the budget, or one payload."""
        shuffle = server.part("shuffle")
        if shuffle is None:
            return
        budget = shuffle.partitions.budget
        if not 0 <= budget.memory <= max(budget.memory_max, _PAYLOAD_BYTES_MAX):
            raise Violation(f"{budget.memory} bytes of buffers are in memory, of {budget.memory_max}")

    def check_idle(self, server: Any) -> None:
        """Everybody sleeps: nobody may sleep with data to send, and the budget equals the partitions' memory."""
        shuffle, world = server.part("shuffle"), self.world
        assert world.process is not None
        if shuffle is None or any(
            not thread.at_rest or thread.frozen_until > world.now for thread in world.process.threads
        ):
            return
        partitions = list(shuffle.partitions._by_id.values())
        budget = shuffle.partitions.budget
        holdings = [partition.holdings for partition in partitions]
        held = sum(each.memory for each in holdings), sum(each.disk for each in holdings)
        if (budget.memory, budget.disk) != held:
            raise Violation(
                f"{budget.memory} bytes in memory and {budget.disk} on disk are counted, and there are {held}"
            )
        for processor in server.sockets.processors:
            for connection in processor.connections:
                if isinstance(connection.data, _State):
                    _check_receivers(connection)

    def leftovers(self, server: Any) -> dict[str, Any]:
        shuffle = server.part("shuffle")
        partitions = shuffle.partitions
        return {
            "partitions": len(partitions._by_id),
            "readers that wait": len(partitions.waiting),
            "deadlines": len(partitions._deadlines),
            "attempts that have won": len(partitions._winners),
            "bytes of buffers in memory": partitions.budget.memory,
            "bytes of buffers on disk": partitions.budget.disk,
            "bytes of their index": partitions.budget.index,
            "bytes promised to writers": partitions.budget.reserved,
            "spill files": sum(
                path.startswith(f"{_DIRECTORY}/") and path not in shuffle.spiller.released.paths
                for path, _ in self.host.medium.walk()
            ),
            "open spill files": sum(
                path.startswith(f"{_DIRECTORY}/")
                for path in (self.world.process.files.values() if self.world.process is not None else ())
            ),
        }


def _check_receivers(connection: Any) -> None:
    queue = connection.data.queue
    if not connection.writable:
        if not connection.outgoing_bytes:
            raise Violation("a connection with nothing to send is called unwritable")
        return
    if queue._held:  # the timer has it look again when its client is below its quota
        return
    for receiver in queue._receivers.values():
        view = receiver.view
        if receiver.queued:
            raise Violation("a receiver stands in the row of a writable connection, and everybody sleeps")
        cursor = view.current or (view.row[0] if view.row else None)
        buffer = None if cursor is None else cursor.part.at(cursor.position)
        if buffer is not None and view.credit.may_send(view._types[buffer.data_type]):
            raise Violation(f"{view.partition.id}: a receiver has credit and data, and everybody sleeps")
