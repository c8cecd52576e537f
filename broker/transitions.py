"""State tables: each transition is written once, in the module that has the states.

The rows are text beside the states, read when the module is imported. ``docs/generate.py`` draws the tables in docs/STATES.md.
"""

from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Transitions(dict[tuple[S, E], S]):
    """(state, event) -> next state, in the order of the rows.

    A row is the names of a state, an event and the next state, and perhaps a note for readers, which is kept in ``notes``. A row
    with an unknown name is a KeyError, two rows for one pair are an AssertionError, when the module is imported.
    """

    def __init__(self, states: type[S], events: type[E], rows: str) -> None:
        self.notes: dict[tuple[S, E], str] = {}
        for row in filter(None, map(str.strip, rows.splitlines())):
            state, event, after, *note = row.split(maxsplit=3)
            pair = states[state], events[event]
            assert pair not in self, row
            self[pair] = states[after]
            self.notes[pair] = "".join(note)

    def next(self, state: S, event: E) -> S:
        """The state after the event. AssertionError for an event that cannot happen in that state, which is a bug of the
        caller."""
        after = self.get((state, event))
        if after is None:
            raise AssertionError(f"{event.name} in state {state.name}")
        return after
