"""Tables of states are read from text, and what cannot be a table is found at import."""

from enum import Enum, auto

import pytest

from broker.transitions import Transitions


class Light(Enum):
    RED = auto()
    GREEN = auto()


class Signal(Enum):
    GO = auto()
    STOP = auto()


ROWS = """
    RED    GO    GREEN
    GREEN  STOP  RED    for those who cross
"""


def test_rows_are_the_table_in_order() -> None:
    table = Transitions(Light, Signal, ROWS)
    assert [((Light.RED, Signal.GO), Light.GREEN), ((Light.GREEN, Signal.STOP), Light.RED)] == list(table.items())
    assert {(Light.RED, Signal.GO): "", (Light.GREEN, Signal.STOP): "for those who cross"} == table.notes


def test_next_is_the_state_after() -> None:
    assert Light.GREEN is Transitions(Light, Signal, ROWS).next(Light.RED, Signal.GO)


def test_pair_outside_the_table_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="GO in state GREEN"):
        Transitions(Light, Signal, ROWS).next(Light.GREEN, Signal.GO)


@pytest.mark.parametrize("row", ["BLUE GO RED", "RED SHINE GREEN", "RED STOP BLUE"])
def test_unknown_names_are_refused(row: str) -> None:
    with pytest.raises(KeyError):
        Transitions(Light, Signal, ROWS + row)


def test_two_rows_for_a_pair_are_refused() -> None:
    with pytest.raises(AssertionError, match="RED GO RED"):
        Transitions(Light, Signal, ROWS + "RED GO RED")
