"""Transactions of a simulation: the records of each, its outcome, and the records that readers may therefore see.

One ``Txn`` may be the work of several producers that end together: it has one fate all the same. It is known from an answer, or
proven by what somebody reads; from then on nothing may be seen that contradicts it, in any partition and in the group's offsets.
"""

from collections.abc import Callable

import attrs

from tests.sim.world import Violation, World

OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"
Partition = tuple[str, int]


@attrs.define(eq=False)
class Txn:
    name: str
    number: int  # of its writer's
    started: float
    # Unknown: whoever asked for the commit has not heard the answer, and never will.
    fate: str = OPEN
    commit_asked: bool = False
    values: dict[Partition, list[bytes]] = attrs.Factory(dict)  # acknowledged or in flight, in order
    offset: int = -1  # of its group's, committed with it
    # What it has read before it wrote: a partition's committed values up to an offset; and what nobody else may read and commit.
    read: dict[Partition, tuple[bytes, ...]] = attrs.Factory(dict)
    claim: object = None
    seen: set[bytes] = attrs.Factory(set)  # by readers of committed records

    def __str__(self) -> str:
        return f"transaction {self.name}/{self.number}, {self.fate}"

    @property
    def size(self) -> int:
        return sum(map(len, self.values.values()))

    def committed(self, how: str) -> None:
        if self.fate is ABORTED or not self.commit_asked:
            raise Violation(f"{self} is committed: {how}")
        self.fate = COMMITTED

    def aborted(self, how: str) -> None:
        if self.fate is COMMITTED:
            raise Violation(f"{self} is aborted: {how}")
        self.fate = ABORTED

    def given_up(self) -> None:
        """By whoever wrote it: fenced, or dead."""
        if self.fate is OPEN:
            self.fate = UNKNOWN if self.commit_asked else ABORTED


class Ledger:
    def __init__(self, world: World) -> None:
        self.world = world
        self.by_value: dict[bytes, Txn] = {}
        self.txns: dict[str, list[Txn]] = {}  # by their transactional ids, in order
        # What a group would find were the broker killed now: (group) -> offset, -1 for none.
        self.stored: Callable[[str], int] = lambda group: -1
        self.machine_failed: Callable[[], bool] = lambda: False
        # Offsets may be committed after the end of their transaction was answered: by another node.
        self.offsets_later = False
        # Called when somebody asks for a commit or an abort.
        self.on_decision: Callable[[], None] = lambda: None
        # Could a transaction that began then have come to the end of its time?
        self.clock_jumps = False

    def begin(self, name: str) -> Txn:
        mine = self.txns.setdefault(name, [])
        txn = Txn(name, len(mine), self.world.now)
        mine.append(txn)
        return txn

    def writing(self, txn: Txn, partition: Partition, values: list[bytes]) -> None:
        txn.values.setdefault(partition, []).extend(values)
        for value in values:
            self.by_value[value] = txn

    # -- records ----------------------------------------------------------------------------------------------------------

    def visible(self, partition: Partition, offset: int, value: bytes, reader: str) -> None:
        """To a reader of committed records only."""
        txn = self._txn(partition, offset, value)
        txn.committed(f"{reader} sees {value[:40]!r} at {partition} {offset}")
        txn.seen.add(value)

    def hidden(self, partition: Partition, offset: int, value: bytes, reader: str) -> None:
        """Passed over, because the broker says that it was aborted."""
        self._txn(partition, offset, value).aborted(f"{reader} is told so of {value[:40]!r} at {partition} {offset}")

    def _txn(self, partition: Partition, offset: int, value: bytes) -> Txn:
        txn = self.by_value.get(value)
        if txn is None:
            raise Violation(f"{partition}: nobody ever wrote what is at {offset}: {value[:60]!r}")
        return txn

    def audit(self, seen: dict[Partition, list[bytes]]) -> None:
        """After reading all partitions from their beginning to their end, which nothing open holds back."""
        everything = {value: key for key, values in seen.items() for value in values}
        if len(everything) != sum(map(len, seen.values())):
            raise Violation("a committed record is there twice")
        for txns in self.txns.values():
            for txn in txns:
                self._audit(txn, everything)
        for key, values in seen.items():
            at = {value: position for position, value in enumerate(values)}
            for txns in self.txns.values():
                for txn in txns:
                    order = [at[value] for value in txn.values.get(key, []) if value in at]
                    if order != sorted(order):
                        raise Violation(f"{txn}: its records in {key} are not in order")

    @staticmethod
    def _audit(txn: Txn, seen: dict[bytes, Partition]) -> None:
        missing, found = [], []
        for key, values in txn.values.items():
            for value in values:
                (found if seen.get(value) == key else missing).append((key, value[:40]))
        if txn.fate is OPEN:
            raise Violation(f"{txn}: for ever")
        if txn.fate is COMMITTED and missing:
            raise Violation(f"{txn}: {missing[0]} is not there")
        if txn.fate is ABORTED and found:
            raise Violation(f"{txn}: {found[0]} is there")
        if found and missing:
            raise Violation(f"{txn}: {found[0]} is there, and {missing[0]} is not")

    # -- offsets ----------------------------------------------------------------------------------------------------------

    def offset_found(self, name: str, offset: int, how: str) -> None:
        """Committed for the group of ``name``, at a moment when none of its transactions is under way."""
        possible = []
        for txn in reversed(self.txns.get(name, [])):
            if txn.offset < 0 or txn.fate is ABORTED:
                continue
            possible.append(txn)
            if txn.fate is COMMITTED:
                break
        else:
            possible.append(None)  # type: ignore[arg-type]
        for txn in possible:
            if offset == (-1 if txn is None else txn.offset):
                if txn is not None:
                    txn.committed(f"{how} finds its offset")
                return
            if txn is not None:
                txn.aborted(f"{how} finds {offset} and not its offset")
        raise Violation(f"the group of {name} has the offset {offset}: {how}")
