"""The power goes at any moment: what was promised is there afterwards, whatever else the disk kept, lost, or tore.

On the simulated disk. What was promised: records below an offset that ``flush_to`` returned for, and topics that were made.
Whatever is there besides is what was appended, in its order and without gaps.
"""

import contextlib
from random import Random

from broker.errors import Refusal, StorageError
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log.log_config import LogConfig
from broker.storage.log_manager import LogManager
from tests.loops import loop_over
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.disk import DiskFaults, Medium, SimDisk
from tests.sim.world import Killed, World
from tests.storage.helpers import NOW_MS, CountingEntropy, HandClock, batch, read_records

SEEDS = 60


class Life:
    """One run of the storage after the other over one disk; what must be left is in ``values`` and ``promised``."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.medium = Medium(self.world)
        self.tables = Tables()
        self.rng = Random(seed)
        self.clock = HandClock()
        self.entropy = CountingEntropy()
        self.topics: dict[str, dict[int, bytes]] = {}  # offset -> value, of everything appended and maybe there
        self.maybe: dict[str, dict[int, bytes]] = {}  # what an append that did not return may have left
        self.promised: dict[str, int] = {}  # offset up to which it was durable
        self.starts: dict[str, int] = {}
        self.gone: set[str] = set()
        self.seen: dict[str, dict[int, bytes | None]] = {}  # what consumers of topics with visible=durable have read
        self.counter = 0

    def boot(self, countdown: int = -1) -> LogManager:
        process = self.world.boot()
        process.countdown = countdown
        config = StorageConfig(
            data_dir="/data",
            max_open_files=4,
            defaults=LogConfig(
                segment_bytes=700, index_interval_bytes=100, file_delete_delay_ms=0, min_cleanable_dirty_ratio=0
            ),
        )
        catalogue = SimCatalogue(process, self.tables)
        manager = LogManager(SimDisk(process, self.medium), self.clock, self.entropy, config, catalogue)
        manager.open()
        return manager

    def run(self, manager: LogManager) -> None:
        """Anything, until the power goes; at times on a disk that fails."""
        rng, faults = self.rng, self.medium.faults
        for _ in range(rng.randrange(5, 60)):
            what = rng.choices(
                ["append", "flush", "create", "housekeep", "delete", "trim", "fault", "read"],
                [60, 15, 4, 8, 1, 3, 3, 10],
            )[0]
            if what == "fault":
                faults.full = rng.random() < 0.3
                faults.write_error, faults.sync_error, faults.open_error, faults.read_error = (
                    rng.choice([0, 0, 0.1, 0.5]) if rng.random() < 0.5 else 0 for _ in range(4)
                )
                continue
            try:
                self.act(manager, what)
            except StorageError:
                assert faults != DiskFaults() or any(log.offline for log in manager.partitions.values())
            if rng.random() < 0.3:
                self.medium.faults = faults = DiskFaults()
        self.medium.faults = DiskFaults()

    def act(self, manager: LogManager, what: str) -> None:
        rng = self.rng
        names = [name for name in self.topics if name not in self.gone]
        if what == "create" or not names:
            name = f"t{len(self.topics)}" if rng.random() < 0.8 or not self.gone else sorted(self.gone)[0]
            self.topics.setdefault(name, {})
            self.gone.add(name)  # until it is there for certain, it may be or not
            configs = {"cleanup.policy": "compact"} if name[-1] in "258" else {}
            if name[-1] in "1379":
                configs["visible"] = "durable"
            with contextlib.suppress(Refusal):
                manager.create_topic(name, 1, configs)
                self.topics[name], self.promised[name], self.starts[name] = {}, 0, 0
                self.seen[name] = {}
                self.gone.discard(name)
            return
        name = rng.choice(names)
        log = manager.get(name, 0)
        assert log is not None
        if what == "append":
            self.append(log)
        elif what == "flush":
            end = log.log_end_offset
            log.durability.flush_to(end)
            if log.offline is None:
                self.promised[name] = max(self.promised[name], end)
        elif what == "read":
            with contextlib.suppress(OSError):  # of a read
                found = {record.offset: record.value for record in read_records(log, rng.choice([1, 300, 10_000]))}
                if log.config.shows_durable:
                    self.seen[name] |= found
        elif what == "housekeep":
            self.housekeep(manager)
        elif what == "trim" and not log.config.compact:
            before = rng.randint(log.log_start_offset, log.high_watermark)
            assert log.trimming.delete_records(before) >= before
            self.starts[name] = max(self.starts[name], before)
        elif what == "delete" and len(names) > 1:
            self.gone.add(name)
            manager.delete_topic(name)

    def append(self, log: Log) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 6)):
            count = rng.randint(1, 3)
            keys = [b"k%d" % rng.randrange(4) for _ in range(count)]
            values = [b"%s/%d/%d" % (key, self.counter, i) + b"." * rng.randrange(80) for i, key in enumerate(keys)]
            self.counter += 1
            # Should the power go meanwhile, it may be there or not.
            maybe = {log.log_end_offset + i: value for i, value in enumerate(values)}
            self.maybe[log.topic] = maybe
            log.append(batch(*values, keys=keys), now_ms=NOW_MS)
            self.topics[log.topic] |= maybe
            self.maybe[log.topic] = {}

    def housekeep(self, manager: LogManager) -> None:
        manager.housekeeper.hurry()
        for _ in range(50):
            if not manager.housekeeper.step(0):
                break

    def power_off(self) -> None:
        process = self.world.process
        assert process is not None
        self.medium.faults = DiskFaults()
        self.world.end_process()
        self.medium.process_died(process, power=True)
        self.medium.faults = DiskFaults()  # the power may have gone while the disk failed

    def check(self, manager: LogManager) -> None:
        for name, appended in self.topics.items():
            log = manager.get(name, 0)
            if name in self.gone:
                if log is not None and manager.topic(name) is not None:
                    self.gone.discard(name)  # it was made, or not deleted after all
                    self.promised.setdefault(name, 0)
                    self.starts.setdefault(name, 0)
                continue
            assert log is not None, f"{name} is lost"
            assert log.offline is None, log.offline
            assert log.log_end_offset >= self.promised[name]
            found = {record.offset: record.value for record in read_records(log, self.rng.choice([1, 300, 10_000]))}
            for offset, value in found.items():
                assert appended.get(offset) == value or self.maybe.get(name, {}).get(offset) == value, (name, offset)
                appended[offset] = value or b""
            self.maybe.pop(name, None)
            for offset, value in self.seen.get(name, {}).items():  # whether it was acknowledged or not
                assert offset < log.log_start_offset or found[offset] == value, "a consumer has read what is lost"
            assert log.log_start_offset >= self.starts[name]
            self.starts[name] = log.log_start_offset
            expected = range(log.log_start_offset, log.log_end_offset)
            if log.config.compact:
                self.check_compacted(log, found)
            else:
                assert sorted(found) == list(expected)
            for offset in [o for o in appended if o >= log.log_end_offset]:
                del appended[offset]
            self.promised[name] = min(self.promised[name], log.log_end_offset)

    def check_compacted(self, log: Log, found: dict[int, bytes | None]) -> None:
        """Of every key, the last record is there."""
        appended = sorted(self.topics[log.topic].items())
        last = {value.split(b"/")[0]: offset for offset, value in appended if offset < log.log_end_offset}
        assert set(last.values()) <= set(found)


@loop_over("seed", range(SEEDS))
def test_what_was_promised_survives_any_power_loss(seed: int) -> None:
    life = Life(seed)
    manager = life.boot()
    for _ in range(8):
        process = life.world.process
        assert process is not None
        process.countdown = life.rng.randrange(3000)
        try:
            life.run(manager)
            if life.rng.random() < 0.2:
                manager.close()
        except Killed:
            pass
        process.countdown = -1
        life.power_off()
        while life.rng.random() < 0.3:  # and again while it recovers
            with contextlib.suppress(Killed):
                life.boot(life.rng.randrange(300))
            life.power_off()
        manager = life.boot()
        life.check(manager)


def test_an_acknowledged_error_is_no_promise() -> None:
    """A write that failed leaves nothing, power loss or not."""
    life = Life(7)
    manager = life.boot()
    manager.create_topic("t", 1)
    log = manager.get("t", 0)
    assert log is not None
    for number in range(30):
        life.medium.faults.full = number % 3 == 2
        try:
            log.append(batch(b"%d" % number), now_ms=NOW_MS)
        except StorageError:
            assert life.medium.faults.full
    life.medium.faults.full = False
    log.durability.flush_to(log.log_end_offset)
    life.power_off()
    log = life.boot().get("t", 0)
    assert log is not None
    assert [record.value for record in read_records(log)] == [b"%d" % number for number in range(30) if number % 3 != 2]
