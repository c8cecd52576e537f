"""Backups as the broker sees them: a single backup is *pinned*, a command on the same machine copies it, then it is released.

``begin`` takes one moment of the whole broker: topics and catalogue stand still, and the ends of all logs are read together
(``staging.py``). The catalogue is copied as of that moment. So the backup is the state that a crash at that moment would have
left, and recovery handles it as such. Then everything goes on, except that no compaction begins until the files are pinned: it
could remove a record in favour of a record that is not in the backup.

Of several nodes on one machine, any may be asked: all of them take part (``together.py``), and the files of all are pinned in
the directory of this one.

A command that dies releases nothing. So a pinned backup is released after ``LEASE_S`` without ``renew``, and at the next start.

``begin`` and ``end`` run on handlers that may wait for the disk. The lease ends on the timer's thread, and the housekeeper
removes the files.
"""

from collections.abc import Callable

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.clock import Clock
from broker.runtime.entropy import Entropy
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.storage.backup.layout import STAGING
from broker.storage.backup.staging import LogCut, Staging, cut, read_saved, remove_tree
from broker.storage.data_directory import CATALOGUE
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager

logger = get_logger("storage")

# How long (s) a backup stays pinned without a sign of life from the command that copies it.
LEASE_S = 60.0
# The shortest time (s) between two moments: during one, appends may have to wait for a tenth of a second.
_APART_S = 1.0


class BackupRefused(Refusal):
    """Another backup is pinned, or this one is no longer."""


class BackupTooSoon(BackupRefused):
    """The last backup was begun a moment ago."""


class Backups:
    """Of one broker. ``cluster_id`` is written into each backup."""

    def __init__(self, logs: LogManager, clock: Clock, timer: Timer, entropy: Entropy, cluster_id: str) -> None:
        self._logs = logs
        self._clock = clock
        self._timer = timer
        self._entropy = entropy
        self._cluster_id = cluster_id
        self._directory = f"{logs.data_dir}/{STAGING}"
        self._lock = Lock()  # guards the fields below, and is never held during I/O
        self._pinned: str | None = None  # the id of the backup whose files exist, or are being made or removed
        self._lease: TimerHandle | None = None
        self._not_before = 0.0  # Clock.monotonic() s

    def remove_left_over(self) -> None:
        """At the start: have the files that a killed broker left removed in the background."""
        if self._logs.disk.exists(self._directory):
            self._pinned = "left over"
            self._release_later("left over")

    def begin(self) -> tuple[str, str]:
        """Pin a backup. Returns its id and the directory in which it is. Raises BackupRefused, StorageError."""
        if self._logs.nodes is not None and self._logs.nodes.pin is None:
            raise BackupRefused("A cluster on several machines cannot be backed up in this way: see docs/SCALING.md.")
        backup_id = self._entropy.uuid().hex
        with self._lock:
            if self._pinned is not None:
                raise BackupRefused(
                    "Another backup is being made: wait until it is finished. "
                    f"One whose command was killed is given up after {LEASE_S:g} s."
                )
            if self._clock.monotonic() < self._not_before:
                raise BackupTooSoon("Another backup was begun a moment ago: try again in a second.")
            self._pinned = backup_id
        began = self._clock.monotonic()
        try:
            partitions = self._pin(backup_id)
        except BaseException as error:
            self._release(backup_id)
            if isinstance(error, OSError):
                raise StorageError(f"The files of the backup could not be pinned: {error}") from error
            raise
        with self._lock:
            self._extend(backup_id)
        took_ms = round((self._clock.monotonic() - began) * 1000)
        logger.info("backup_pinned", backup=backup_id, partitions=partitions, took_ms=took_ms)
        return backup_id, self._directory

    def renew(self, backup_id: str) -> None:
        """Extend the lease: the command is still copying. Raises BackupRefused if it was too slow, and the files are gone."""
        with self._lock:
            self._check(backup_id)
            self._extend(backup_id)

    def end(self, backup_id: str) -> None:
        """Release the files. Raises BackupRefused if that has happened already."""
        with self._lock:
            self._check(backup_id)
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.cancel()
        self._release(backup_id)
        logger.info("backup_released", backup=backup_id)

    # -- pinning -------------------------------------------------------------------------------------------------------

    def _pin(self, backup_id: str) -> int:
        logs, disk = self._logs, self._logs.disk
        remove_tree(disk, self._directory)
        disk.makedirs(self._directory)
        staging = Staging(disk, logs.data_dir, self._directory, read_saved(disk, logs.data_dir))
        taken_ms = self._pin_alone(staging) if logs.nodes is None else self._pin_with_others(staging, backup_id)
        if staging.deleted:
            # As if the broker had died while it deleted them, which recovery can handle.
            copy = SqliteCatalogue(f"{self._directory}/{CATALOGUE}")
            for topic in staging.deleted:
                copy.delete_topic(topic)
            copy.close()
        from importlib.metadata import version  # which imports 30 modules

        finished = staging.finish(backup_id, taken_ms, self._cluster_id, version("reactor-broker"))
        return len(finished.partitions)

    def _pin_alone(self, staging: Staging) -> int:
        """When the moment was (ms)."""
        logs = self._logs
        cuts: list[LogCut] = []

        def moment(all_logs: list[Log]) -> None:
            self._not_before = self._clock.monotonic() + _APART_S
            cuts.extend(cut(all_logs, self._clock) or ())

        with logs.housekeeper.without_new_cleanings():
            save_catalogue = logs.freeze(moment)
            taken_ms = self._clock.time_ms()
            for each in cuts:
                staging.add(each)
        save_catalogue(f"{self._directory}/{CATALOGUE}")
        return taken_ms

    def _pin_with_others(self, staging: Staging, backup_id: str) -> int:
        from broker.storage.backup.together import add_parts

        nodes = self._logs.nodes
        assert nodes is not None
        assert nodes.pin is not None
        with nodes.pin(backup_id, self._directory) as pinning:
            with nodes.changing_topics():
                self._not_before = self._clock.monotonic() + _APART_S
                pinning.moment()
                taken_ms = self._clock.time_ms()
            pinning.staged()
        add_parts(staging, self._logs)
        return taken_ms

    # -- releasing -----------------------------------------------------------------------------------------------------

    def _check(self, backup_id: str) -> None:
        if self._pinned != backup_id or self._lease is None:
            raise BackupRefused(
                "This backup is not pinned any more: its command was not heard of for "
                f"{LEASE_S:g} s, or the broker was restarted. Run it again."
            )

    def _extend(self, backup_id: str) -> None:
        """``_lock`` is held."""
        if self._lease is not None:
            self._lease.cancel()
        expire: Callable[[], None] = lambda: self._expire(backup_id)  # noqa: E731
        self._lease = self._timer.at(self._clock.monotonic() + LEASE_S, expire)

    def _expire(self, backup_id: str) -> None:
        with self._lock:
            if self._pinned != backup_id or self._lease is None:
                return
            if self._lease.deadline > self._clock.monotonic():  # extended at this very moment
                return
            self._lease = None
        logger.warning("backup_abandoned", backup=backup_id, lease_s=LEASE_S)
        self._release_later(backup_id)

    def _release_later(self, backup_id: str) -> None:
        self._logs.housekeeper.run_soon(lambda: self._release(backup_id))

    def _release(self, backup_id: str) -> None:
        """Remove the files; then another backup may begin."""
        try:
            remove_tree(self._logs.disk, self._directory)
        except OSError as error:
            logger.warning("backup_not_removed", path=self._directory, error=str(error))
        finally:
            with self._lock:
                if self._pinned == backup_id:
                    self._pinned = None
