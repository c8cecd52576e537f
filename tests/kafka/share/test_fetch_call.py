"""The states of a ShareFetch are those of the docstring; tests/kafka/handlers has the tests of its behaviour."""

import re

from broker.kafka.share import fetch_call
from broker.kafka.share.fetch_call import NEXT, State

ROWS = re.findall(r"^\| ([A-Z_]+) \| [^|]+ \| ([A-Z_]+) \|$", fetch_call.__doc__ or "", re.MULTILINE)


def test_docstring_table_is_in_force() -> None:
    rows = {(State(before), State(after)) for before, after in ROWS}
    assert rows == {(before, after) for before, following in NEXT.items() for after in following}


def test_every_state_but_the_last_ones_is_left() -> None:
    assert set(State) - {before for before, following in NEXT.items() if following} == {State.ANSWERED, State.ABANDONED}
