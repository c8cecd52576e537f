"""Ships changes of files to the journal: gathers what waits into flushes, puts bytes into objects, appends rows in order.

A *flush* is one row. Whoever needs something durable asks (``Shipper.ask``), and is called back when the row is committed. One of
the shipping threads takes everything that waits, at most ``flush_max`` bytes. A flush of more than ``inline_max`` bytes puts them
into an object first. Several flushes may be putting objects at the same time, but rows are appended in the order of their
numbers, by one thread at a time; rows that are ready together are appended together. So a flush begins

- at once if none is under way; so requests that arrive during a commit share the next one;
- if those under way only wait for their commit, and it will put an object: it can do so meanwhile. A row would only wait, too;
- if others are putting objects, but at least ``beside_min`` bytes wait. Each PUT costs money, and this bounds what a GB costs;
- after ``linger_s`` in any case.

A flush never fails for a while: it is tried again until its row is committed, and whoever waits goes on waiting, as for a disk
that hangs. It ends with an error when another broker has taken over (``Fenced``) or when ``close`` gives up.

``tidy`` removes the rows that no file needs, and carries over the small files that keep the oldest rows from being removed.

The lock guards the table of files, the requests and the flushes; nothing waits while it is held.

Tests: tests/storage/journal/test_shipper.py.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf

import attrs

from broker.errors import Fenced, StorageError
from broker.log import get_logger
from broker.metadata.journal import Journal, JournalRow
from broker.metrics import names
from broker.metrics.registry import HistogramCell
from broker.runtime.clock import Clock
from broker.runtime.disk import File
from broker.runtime.objects import ObjectError, ObjectStore
from broker.runtime.threads import Event, Lock
from broker.storage.journal.file_table import FileState, FileTable, oldest_row
from broker.storage.journal.operations import Index, Operation, Write, encode
from protocol.frames import crc32c

logger = get_logger("storage")

Done = Callable[[OSError | None], None]

# How many flushes may be under way, and how many threads ship them.
PARALLEL = 4
# The first pause (s) before a failed step is tried again, and the longest.
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# The journal may have this many times the bytes of the files that need it, and so many more.
_DEAD_TIMES, _DEAD_BYTES = 4, 16 * 1024 * 1024
# Beyond ``rows``, the journal may have a row for so many bytes of the files that need it: their rows are removed by shipping them
# once more, so a row that has 100 bytes costs at most so many. A take-over takes about as long for a row as for these bytes.
_BYTES_A_ROW = 64 * 1024
# Files are carried over so many (bytes, files) at a time: each is open meanwhile, and whoever asks then waits for no more.
_CARRIED_BYTES, _CARRIED_FILES = 2 * 1024 * 1024, 500


@attrs.frozen(kw_only=True)
class ShippingLimits:
    """Sizes in bytes. ``rows`` and ``bytes`` are what the journal may hold before old rows are made unnecessary. A file of more
    than ``carry_max`` in the journal is not carried over: it is rolled and uploaded instead. ``tidy_s``: how often.

    ``beside_min``: of a flush that puts an object while others do. With 256 KiB, a GB costs at most 4,096 PUTs, $0.02, which is
    what an object store asks for keeping it a month."""

    inline_max: int = 64 * 1024
    flush_max: int = 8 * 1024 * 1024
    beside_min: int = 256 * 1024
    linger_s: float = 0.25
    rows: int = 2_000
    bytes: int = 512 * 1024 * 1024
    carry_max: int = 8 * 1024 * 1024
    tidy_s: float = 2.0


@attrs.define(eq=False)
class _Request:
    """Files, each with an open file to read from and the end of what has to be shipped."""

    wanted: deque[tuple[FileState, File, int]]
    done: Done


@attrs.frozen
class _Piece:
    """Bytes of a file that a flush ships, under the path that the file had when the flush began."""

    path: str
    state: FileState
    file: File
    start: int
    end: int


@attrs.define(eq=False)
class _Flush:
    """``operations`` are those without bytes. ``row`` is None if there is nothing to be stored."""

    number: int
    operations: list[Operation]
    pieces: list[_Piece]
    requests: list[_Request]
    row: JournalRow | None = None
    size: int = 0
    is_ready: bool = False
    began: float = 0.0  # monotonic s


@attrs.define(eq=False)
class ShipperCounts:
    """For metrics, since the start; written under the shipper's lock. ``seconds``: from a flush's begin to its commit."""

    flushes: int = 0
    bytes: int = 0
    objects: int = 0
    failures: int = 0  # of attempts to put or to append
    seconds: HistogramCell = attrs.field(factory=lambda: HistogramCell(names.JOURNAL_FLUSH_SECONDS.bounds))


class Shipper:
    def __init__(
        self,
        journal: Journal,
        objects: ObjectStore,
        clock: Clock,
        *,
        prefix: str,
        last: int = 0,
        limits: ShippingLimits | None = None,
    ) -> None:
        """``prefix``: of the keys of this owner's objects; no other owner may have the same. ``last``: the last row's number."""
        self.table = FileTable()
        self.counts = ShipperCounts()
        self.limits = ShippingLimits() if limits is None else limits
        self._journal = journal
        self._objects = objects
        self._clock = clock
        self._prefix = prefix
        # Told of an error of the local disk, after which nothing can be shipped, so the broker cannot go on.
        self.on_failed: Callable[[OSError], None] = lambda _error: None
        self.lock = Lock()
        self._requests: deque[_Request] = deque()
        self._since = 0.0  # when the oldest of them came (monotonic s)
        self._flushes: deque[_Flush] = deque()  # under way, in the order of their numbers
        self._next = last + 1
        self._committed = last
        self._committing = False
        self._failed: OSError | None = None
        self._closed = Event()
        self._wait_until = inf  # no caller waits longer (monotonic s)
        self._asked_bytes = 0  # at most so many wait; what was asked for twice counts twice
        self._idle: list[ShipperThread] = []
        # Committed rows that are in the journal: their number, bytes and object.
        self.rows: deque[tuple[int, int, str | None]] = deque()
        self.row_bytes = 0
        self.threads = [ShipperThread(self) for _ in range(PARALLEL)]
        self._doomed: list[str] = []  # objects whose rows are removed
        # Rows up to the first number can be removed when the second is committed.
        self._unneeded = (0, last)

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, wanted: Sequence[tuple[FileState, File]], done: Done) -> None:
        """Ship what these files have now, and all name changes so far. ``done`` is called on a shipping thread, or here if it has
        failed already; it must be quick. The files stay readable although they are closed."""
        with self.lock:
            failed = self._failed
            if failed is None:
                request = _Request(deque(), done)
                for state, file in wanted:
                    state.reading += 1
                    request.wanted.append((state, file, 2**63 if state.dirty is None else state.dirty[1]))
                    self._asked_bytes += 0 if state.dirty is None else state.dirty[1] - state.dirty[0]
                if not self._requests:
                    self._since = self._clock.monotonic()
                self._requests.append(request)
                # The first that has to wait has a thread look at the clock.
                if len(self._requests) == 1 or self._is_worthwhile():
                    self._wake_one()
        if failed is not None:
            done(failed)

    def shipping(self, wanted: Sequence[tuple[FileState, File]], patience_s: float) -> Iterator[None]:
        """As ``ask``, and wait: it yields whenever that has taken ``patience_s`` again, and ends when it is done. Raises OSError.
        The calling thread ships itself what no other thread does."""
        ended = Event()
        errors: list[OSError] = []

        def done(error: OSError | None) -> None:
            if error is not None:
                errors.append(error)
            ended.set()

        self.ask(wanted, done)
        while not ended.is_set():
            left = self._wait_until - self._clock.monotonic()
            if left <= 0:
                raise OSError(errno.ESHUTDOWN, "the broker stops, and the journal has not answered in time")
            # A caller without much time leaves it to the threads: an attempt may take long.
            if (left < inf or not self.help()) and not ended.wait(min(left, patience_s)):
                yield
        if errors:
            raise OSError(errors[0].errno, errors[0].strerror) from errors[0]

    def ship(self, wanted: Sequence[tuple[FileState, File]]) -> None:
        """As ``ask``, and wait. Raises OSError."""
        for _ in self.shipping(wanted, max(self.limits.linger_s, _PAUSE_S)):
            pass

    def wait_until(self, time: float) -> None:
        """From this time on (monotonic s) no caller waits for anything any more: the broker has to have stopped by then."""
        self._wait_until = time

    def help(self) -> bool:
        """Ship a flush on the calling thread, which has to wait anyway. False if none may begin now."""
        flush = self._begin()
        if flush is not None:
            self._carry_out(flush)
        return flush is not None

    # -- flushes -------------------------------------------------------------------------------------------------------

    def wait(self, thread: "ShipperThread", timeout: float | None) -> None:
        """Until a flush may begin, or somebody wakes the thread."""
        with self.lock:
            if not self._requests or len(self._flushes) >= PARALLEL:
                left = timeout
            else:
                left = max(0.0, self._since + self.limits.linger_s - self._clock.monotonic())
                left = left if timeout is None else min(left, timeout)
                if self._is_worthwhile():
                    return
            self._idle.append(thread)
        thread.event.wait(left)
        with self.lock:
            if thread in self._idle:
                self._idle.remove(thread)
        thread.event.clear()

    def _wake_one(self) -> None:
        """The lock is held. Those that do not wait look at the requests before they do."""
        if self._idle:
            self._idle.pop().event.set()

    def _is_worthwhile(self) -> bool:
        """Whether the next flush should begin, beside those under way, before ``linger_s`` is over. The lock is held."""
        flushes, limits = self._flushes, self.limits
        if not flushes:
            return True
        if len(flushes) >= PARALLEL:
            return False
        if all(flush.is_ready for flush in flushes):
            return self._asked_bytes > limits.inline_max
        return self._asked_bytes >= limits.beside_min

    def _begin(self) -> _Flush | None:
        """The next flush, if it may begin now."""
        with self.lock:
            if not self._requests or self._failed is not None or len(self._flushes) >= PARALLEL:
                return None
            due = self._clock.monotonic() >= self._since + self.limits.linger_s
            if not due and not self._is_worthwhile():
                return None
            flush = self._gather()
            if not flush.operations and not flush.pieces:
                # Everything is in flushes that are under way: it is durable when the last of them is.
                if self._flushes:
                    self._flushes[-1].requests += flush.requests
                    return None
            else:
                self._next += 1
            self._flushes.append(flush)
            self._since = flush.began = self._clock.monotonic()
            if self._requests and self._is_worthwhile():  # this one is full
                self._wake_one()
            return flush

    def _gather(self) -> _Flush:
        number = self._next
        flush = _Flush(number, self.table.take_names(number), [], [])
        room = self.limits.flush_max
        while self._requests and room > 0:
            request = self._requests[0]
            while request.wanted and room > 0:
                state, file, upto = request.wanted[0]
                if not state.is_shipped(upto):
                    operations, start, end = state.take(number, room)
                    flush.operations += operations
                    if start < end and state.path is not None:
                        room -= end - start
                        state.reading += 1
                        flush.pieces.append(_Piece(state.path, state, file, start, end))
                if state.is_shipped(upto):
                    request.wanted.popleft()
                    state.reading -= 1
            if not request.wanted:
                flush.requests.append(self._requests.popleft())
        taken = self.limits.flush_max - room
        self._asked_bytes = max(0, self._asked_bytes - taken) if self._requests else 0
        return flush

    def _carry_out(self, flush: _Flush) -> None:
        if flush.operations or flush.pieces:
            try:
                flush.row = self._make_row(flush)
            except OSError as error:
                self._fail(error)
                return
        with self.lock:
            flush.is_ready = True
            for piece in flush.pieces:
                piece.state.reading -= 1
            flush.pieces = []
            if self._requests and self._is_worthwhile():
                self._wake_one()
        self._commit()

    def _make_row(self, flush: _Flush) -> JournalRow:
        """Read the bytes, and put them into an object if they are many. Raises OSError."""
        parts: list[bytes] = []
        crc = size = 0
        for piece in flush.pieces:
            part = piece.file.pread(piece.end - piece.start, piece.start)
            parts.append(part)
            crc = crc32c(part, crc)
            size += len(part)
            # Shorter if the file was cut meanwhile, which a later flush ships.
            flush.operations.append(Write(piece.path, piece.start, len(part)))
        index = encode(Index(flush.operations, size, crc))
        flush.size = len(index) + size
        if size <= self.limits.inline_max:
            return JournalRow(flush.number, index, b"".join(parts), None)
        key = f"{self._prefix}{flush.number:012d}"
        self._persist("put", lambda: self._objects.put(key, parts, size))
        return JournalRow(flush.number, index, None, key)

    def _persist(self, what: str, attempt: Callable[[], object]) -> None:
        """Try until it succeeds. Raises OSError when the shipper is closed or another broker has taken over."""
        pause = _PAUSE_S
        while True:
            try:
                attempt()
                return
            except Fenced as error:
                raise OSError(errno.EROFS, str(error)) from error
            except (ObjectError, StorageError) as error:
                with self.lock:
                    self.counts.failures += 1
                logger.warning("shipping_failed", what=what, error=str(error), again_in_s=pause)
            if self._closed.wait(pause):
                raise OSError(errno.ESHUTDOWN, "the broker stops, and the journal cannot be reached")
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _commit(self) -> None:
        """Append the rows that are next, and answer; one thread at a time does it for all."""
        while True:
            with self.lock:
                ready: list[_Flush] = []
                if not self._committing:
                    for flush in self._flushes:
                        if not flush.is_ready:
                            break
                        ready.append(flush)
                if not ready:
                    return
                self._committing = True
            rows = [flush.row for flush in ready if flush.row is not None]
            try:
                if rows:
                    self._persist("append", lambda rows=rows: self._journal.append(rows))  # type: ignore[misc]
            except OSError as error:
                self._fail(error)
                return
            answered: list[_Request] = []
            with self.lock:
                self._committing = False
                for flush in ready:
                    self._flushes.popleft()
                    answered += flush.requests
                    if flush.row is not None:
                        self._committed = flush.number
                        self.rows.append((flush.number, flush.size, flush.row.object))
                        self.row_bytes += flush.size
                        self._count(flush)
                if self._requests:
                    self._wake_one()
            for request in answered:
                request.done(None)

    def _count(self, flush: _Flush) -> None:
        counts = self.counts
        counts.flushes += 1
        counts.bytes += flush.size
        counts.objects += flush.row is not None and flush.row.object is not None
        counts.seconds.observe(self._clock.monotonic() - flush.began)

    def _fail(self, error: OSError) -> None:
        """Nothing is shipped any more."""
        with self.lock:
            first = self._failed is None
            self._failed = self._failed or error
            requests = [request for flush in self._flushes for request in flush.requests] + list(self._requests)
            self._flushes.clear()
            self._requests.clear()
        if first:
            logger.error("shipping_ended", error=str(error))
            if error.errno not in (errno.EROFS, errno.ESHUTDOWN):  # those are known: fenced, stopping
                self.on_failed(error)
        for request in requests:
            request.done(error)

    def close(self) -> None:
        """Give up what cannot be shipped now: nothing is tried again."""
        self._closed.set()

    def replayed(self, row: JournalRow, data_size: int) -> None:
        """At the start: this row is in the journal, and what it did is in ``table``."""
        self._next, self._committed = row.number + 1, row.number
        size = len(row.index) + data_size
        self.rows.append((row.number, size, row.object))
        self.row_bytes += size

    # -- tidying up ----------------------------------------------------------------------------------------------------

    def sweep(self, prefix: str) -> None:
        """Delete the objects below ``prefix`` that no row names: an owner before this one had put them there, and lost the state
        before it could append their rows, or had no time to delete them. Its rows can come no more. Raises OSError.

        Keys sort as epochs do. Those of later owners must stay: this one may have been replaced and not know it yet.
        """
        with self.lock:
            named = {key for _, _, key in self.rows}
        mine = self._prefix.rpartition("/")[0]
        self._objects.delete([k for k, _ in self._objects.list(prefix) if k < mine and k not in named])

    def tidy(self, open_file: Callable[[str], File]) -> None:
        """Remove the rows that no file needs. If too many are left, carry the small files over that need the oldest half.

        ``open_file`` opens a file by its path. Background thread. Raises OSError, StorageError.
        """
        with self.lock:
            upto, begun = self._unneeded
            is_certain = self._committed >= begun
            last = self._next - 1
            states, dropped = list(self.table), self.table.dropped
        # Without the lock: a file's oldest row only rises, and a file that comes later needs later rows.
        if is_certain:
            # Files that flushes under way carry over need their older rows until these flushes are committed.
            oldest = oldest_row(states, dropped, last)
            with self.lock:
                self._unneeded = oldest - 1, self._next - 1
        else:
            upto = 0
        if self.rows and self.rows[0][0] <= upto:
            self._journal.remove(upto)
            with self.lock:
                while self.rows and self.rows[0][0] <= upto:
                    _, size, key = self.rows.popleft()
                    self.row_bytes -= size
                    if key is not None:
                        self._doomed.append(key)
        if self._doomed:
            self._objects.delete(self._doomed)
            self._doomed = []
        live = sum(state.size for state in states if state.first_row)
        if self._is_wasteful(live) or self.row_bytes > _DEAD_TIMES * live + _DEAD_BYTES:
            self._carry_oldest(states, open_file)

    def _is_wasteful(self, live: int) -> bool:
        """Whether there is too much, and carrying files over gains something: ``live`` bytes are needed in any case, and if most
        are, the same files would be shipped over and over."""
        rows, size, limits = len(self.rows), self.row_bytes, self.limits
        useful = max(limits.rows // 2, 2 * (live // limits.flush_max + 1), live // _BYTES_A_ROW)
        return rows > useful or (size > limits.bytes // 2 and size > 2 * live)

    def _is_too_much(self) -> bool:
        return len(self.rows) > self.limits.rows // 2 or self.row_bytes > self.limits.bytes // 2

    def _carry_oldest(self, states: Sequence[FileState], open_file: Callable[[str], File]) -> None:
        middle = self.rows[len(self.rows) // 2][0]
        wanted: list[tuple[FileState, File]] = []
        size = 0
        for state in states:
            path = state.path
            if (
                path is None
                or not 0 < state.first_row <= middle
                or state.size > self.limits.carry_max
                or state.carried is not None
            ):
                continue
            try:
                file = open_file(path)
            except FileNotFoundError:
                continue
            if len(wanted) == _CARRIED_FILES or (wanted and size + state.size > _CARRIED_BYTES):
                self._carry(wanted)
                wanted, size = [], 0
            wanted.append((state, file))
            size += state.size
        if wanted:
            self._carry(wanted)

    def _carry(self, wanted: Sequence[tuple[FileState, File]]) -> None:
        with self.lock:
            named = [each for each in wanted if each[0].path is not None]
            for state, _ in named:
                self.table.carry(state)
        self.ship(named)

    def oversized(self) -> list[str]:
        """Files that keep the older half of too many rows or bytes from being removed, and are too large to be carried over."""
        if not self._is_too_much():
            return []
        with self.lock:
            rows = list(self.rows)
            states = list(self.table)
        middle = rows[len(rows) // 2][0]
        size = 0
        for number, each, _ in rows:  # the older half by bytes may reach further than that by rows
            size += each
            if size > self.row_bytes // 2:
                middle = max(middle, number)
                break
        large = [state.path for state in states if 0 < state.first_row <= middle and state.size > self.limits.carry_max]
        return [path for path in large if path is not None]


class ShipperThread:
    """The body of one of the shipping threads."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self.event = Event()

    def step(self, timeout: float | None) -> bool:
        """Ship one flush, if one may begin."""
        if self._shipper.help():
            return True
        if timeout != 0:
            self._shipper.wait(self, timeout)
        return self._shipper.help()

    def wakeup(self) -> None:
        self.event.set()
