"""What of a consumer group is not durable yet, and which answers wait for it.

Pure, under the group's lock. Events change the group at once and mark the rows that are to be written; at the end of the event
``flush`` emits one ``SaveRows`` of all of them. An answer that tells a client something new is sent when the save is durable
that has it, so that a group that is loaded again agrees with what clients were told.

If a save fails, its answers become NOT_COORDINATOR and its rows stay marked: the next event writes them as they are then. So do
the answers of saves that were on their way then, because what they have written may build on what is missing.

Tests: tests/kafka/groups/consumer/test_consumer_group.py, tests/kafka/groups/consumer/test_consumer_machine.py.
"""

from collections.abc import Callable, Iterable

from broker.kafka.groups.consumer.values import BecomeClassic, SaveNote
from broker.kafka.groups.group import Answer, SaveRows
from broker.kafka.groups.values import JoinAnswer, SyncAnswer
from protocol.kafka.errors import ErrorCode

# Makes the answer, or the answer with this error instead.
AnswerMaker = Callable[[ErrorCode], Answer | JoinAnswer | SyncAnswer]
Emit = Callable[[Answer | JoinAnswer | SyncAnswer | SaveRows], None]


class Saver:
    """``encode`` makes the present content of a row; None if there is no such member any more."""

    def __init__(self, emit: Emit, encode: Callable[[str], bytes | None]) -> None:
        # The last save that was emitted, and the last one whose end is known.
        self.number = 0
        self.settled = 0
        # Up to this save what is stored may lack something.
        self._failed = 0
        self._emit = emit
        self._encode = encode
        self._marked: dict[str, None] = {}
        self._waiting: dict[int, list[AnswerMaker]] = {}
        self._replaces_classic = False

    @property
    def marked(self) -> Iterable[str]:
        """The rows that are to be written."""
        return self._marked

    @property
    def is_clean(self) -> bool:
        """Nothing is to be written."""
        return not self._marked

    def mark(self, row: str) -> None:
        self._marked[row] = None

    def replace_classic(self) -> None:
        """The next save makes a classic group one of this kind."""
        self._replaces_classic = True

    def next_note(self) -> SaveNote:
        """Of a save that somebody else emits, of all that is marked."""
        self._marked = {}
        self.number += 1
        return SaveNote(self.number)

    def flush(self) -> None:
        """Emit a save of all rows that are marked."""
        if not self._marked:
            return
        put = {row: self._encode(row) for row in self._marked}
        self._marked = {}
        self.number += 1
        replaces_classic, self._replaces_classic = self._replaces_classic, False
        self._emit(SaveRows(put, SaveNote(self.number, replaces_classic)))

    def is_durable(self, number: int) -> bool:
        """Nothing is to be written, and the save with this number is durable."""
        return not self._marked and number <= self.settled

    def answer(self, number: int | None, answer: AnswerMaker) -> None:
        """Emit the answer when what is to be written now is durable; if nothing is, when the save with this number is."""
        if self._marked:
            number = self.number + 1
        elif number is None or number <= self.settled:
            self._emit(answer(ErrorCode.none))
            return
        self._waiting.setdefault(number, []).append(answer)

    def saved(self, save: SaveRows | BecomeClassic, error: ErrorCode) -> None:
        note: SaveNote = save.then
        self.settled = note.number
        if error:
            self._failed = self.number
        if error and isinstance(save, SaveRows):
            self._replaces_classic |= note.replaces_classic
            for row in save.put:
                self.mark(row)
        code = ErrorCode.not_coordinator if note.number <= self._failed else ErrorCode.none
        for answer in self._waiting.pop(note.number, ()):
            self._emit(answer(code))
