"""Checks that every table of transitions must pass, whatever it is a table of."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import pytest


def check_pairs(
    table: Mapping[Any, Any],
    next_state: Callable[[Any, Any], Any],
    states: Iterable[Enum],
    events: Iterable[Enum],
    expected: Callable[[Any, Any], Any] | None = None,
) -> None:
    """``next_state`` does for each pair what ``table`` says, and what ``expected`` says (None where the event cannot happen); it
    raises AssertionError, with both names, for a pair that is not in the table."""
    for state in states:
        for event in list(events):
            after = table.get((state, event))
            if expected is not None:
                assert after == expected(state, event), (state, event)
            if after is None:
                with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
                    next_state(state, event)
            else:
                followed = next_state(state, event)
                assert (followed, type(followed)) == (after, type(after)), (state, event)
