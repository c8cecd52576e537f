"""The outstanding reads of a dispatcher: one ``Read`` and one ``Replay`` at most, their epochs, and how much to ask for.

Pure. A completion counts only if its epoch is that of the outstanding read: each read has an epoch of its own, and ``forget``
makes those that are still on their way stale. So a read that completes after all consumers have left, or after the
subscription was rewound, can neither deliver anything nor clear what was asked for since.

After a read that failed, nothing is read for a time that doubles with each failure; then one entry is asked for, and after
each success twice as many as before. A read that returned nothing, although it was to wait for an entry, is repeated a little
later.
"""

from collections.abc import Sequence

from broker.pulsar.dispatch.dispatcher import DispatchSettings, Now, Read, Replay

# After a read that returned nothing.
_EMPTY_RETRY_S = 0.01


class Reading:
    __slots__ = ("_delay_s", "_epoch", "_settings", "entries_max", "messages_per_entry", "read", "replay", "retry_at")

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._epoch = 0
        self._delay_s = 0.0  # after the last failure; 0 after a success
        self.read: Read | None = None
        self.replay: Replay | None = None
        self.entries_max = settings.read_entries_max
        self.messages_per_entry = 1.0  # of late
        self.retry_at = 0.0  # nothing is read before this time

    def begin_read(self, offset: int, entries: int, size: int) -> Read:
        self._epoch += 1
        self.read = Read(offset, entries, size, self._epoch)
        return self.read

    def begin_replay(self, offsets: Sequence[int]) -> Replay:
        self._epoch += 1
        self.replay = Replay(offsets, self._epoch)
        return self.replay

    def end_read(self, read: Read) -> bool:
        """False: it is stale, and is to be ignored."""
        if self.read is None or read.epoch != self.read.epoch:
            return False
        self.read = None
        return True

    def end_replay(self, replay: Replay) -> bool:
        """False: it is stale, and is to be ignored."""
        if self.replay is None or replay.epoch != self.replay.epoch:
            return False
        self.replay = None
        return True

    def failed(self, now: Now) -> None:
        settings = self._settings
        self._delay_s = min(self._delay_s * 2 or settings.read_retry_s, settings.read_retry_max_s)
        self.retry_at = now.monotonic + self._delay_s
        self.entries_max = 1

    def succeeded(self) -> None:
        if self.entries_max < self._settings.read_entries_max:
            self.entries_max = min(self.entries_max * 2, self._settings.read_entries_max)
        self._delay_s = 0.0

    def empty(self, now: Now) -> None:
        self.retry_at = now.monotonic + _EMPTY_RETRY_S

    def measure(self, entries: int, messages: int) -> None:
        """So many messages were in so many entries."""
        self.messages_per_entry = 0.9 * self.messages_per_entry + 0.1 * messages / entries

    def forget(self) -> bool:
        """Whatever is outstanding is stale. Whether a ``Read`` was."""
        outstanding = self.read is not None
        self.read = self.replay = None
        return outstanding
