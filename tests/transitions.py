"""Checks that every table of transitions must pass, whatever it is a table of."""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import pytest

_ROW = re.compile(r"^(?:\| )?([A-Z_]+) +(?:\| )?([A-Z_]+) +(?:\| )?([A-Z_]+)(?: +\|)?$", re.MULTILINE)


def check_docstring(doc: str | None, table: Mapping[Any, Any], states: Iterable[Enum], events: Iterable[Enum]) -> None:
    """The rows "state, event, next state" that ``doc`` draws are ``table``. Rows of other states are another table's."""
    state_of = {state.name: state for state in states}
    event_of = {event.name: event for event in events}
    rows = [row for row in _ROW.findall(doc or "") if row[0] in state_of]
    assert {(state_of[state], event_of[event]): state_of[after] for state, event, after in rows} == table
    assert len(rows) == len(table)


def check_pairs(
    table: Mapping[Any, Any],
    next_state: Callable[[Any, Any], Any],
    states: Iterable[Enum],
    events: Iterable[Enum],
    expected: Callable[[Any, Any], Any] | None = None,
    kind: str = "state",
) -> None:
    """``next_state`` does for each pair what ``table`` says, and what ``expected`` says (None where the event cannot happen); it
    raises AssertionError, with both names and what ``kind`` of thing the first is, for a pair that is not in the table."""
    for state in states:
        for event in list(events):
            after = table.get((state, event))
            if expected is not None:
                assert after == expected(state, event), (state, event)
            if after is None:
                with pytest.raises(AssertionError, match=f"{event.name} in {kind} {state.name}"):
                    next_state(state, event)
            else:
                followed = next_state(state, event)
                assert (followed, type(followed)) == (after, type(after)), (state, event)
