"""Which rows are not durable, against a model in which each change of a row has a number."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.groups.share.members import UnsavedRows

rows = st.sampled_from(["", "a", "b", "c"])


class UnsavedRowsMachine(RuleBasedStateMachine):
    """Saves end in the order in which they began, as the catalogue's writer does it."""

    def __init__(self) -> None:
        super().__init__()
        self.unsaved = UnsavedRows()
        self.changes: dict[str, int] = {}  # by row: how often it has changed
        self.durable: dict[str, int] = {}
        self.saves: list[tuple[int, list[str], dict[str, int]]] = []

    @rule(row=rows)
    def change(self, row: str) -> None:
        self.changes[row] = self.changes.get(row, 0) + 1
        self.unsaved.add(row)

    @precondition(lambda self: self.unsaved.any_changed)
    @rule()
    def save(self) -> None:
        number, taken = self.unsaved.take()
        self.saves.append((number, taken, {row: self.changes[row] for row in taken}))

    @precondition(lambda self: self.saves)
    @rule(failed=st.booleans())
    def end_save(self, failed: bool) -> None:
        number, taken, contents = self.saves.pop(0)
        self.unsaved.saved(number, taken, failed=failed)
        if not failed:
            self.durable |= contents

    @invariant()
    def a_row_is_unsaved_if_its_last_change_is_not_durable(self) -> None:
        for row, count in self.changes.items():
            assert (row in self.unsaved) == (self.durable.get(row, 0) < count)

    @invariant()
    def nothing_is_forgotten_that_is_not_being_saved(self) -> None:
        saving = {row: count for _, _, contents in self.saves for row, count in contents.items()}
        left = {row for row, count in self.changes.items() if max(self.durable.get(row, 0), saving.get(row, 0)) < count}
        assert self.unsaved.any_changed == bool(left)


TestUnsavedRowsMachine = UnsavedRowsMachine.TestCase
TestUnsavedRowsMachine.settings = settings(max_examples=60, stateful_step_count=30)
