"""File names say an offset and what a file holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.segments.segment import LOG, file_name, offset_of


@given(offset=st.integers(0, 2**63 - 1))
def test_file_name_has_its_offset_and_sorts_so(offset: int) -> None:
    assert offset_of(file_name(offset, LOG), LOG) == offset
    assert len(file_name(offset, LOG)) == 24
    assert file_name(offset, LOG) < file_name(offset + 1, LOG)


@pytest.mark.parametrize(
    "name", ["", ".log", "1.log", "0000000000000000000x.log", "00000000000000000000.index", "²" * 20 + ".log"]
)
def test_other_names_say_none(name: str) -> None:
    assert offset_of(name, LOG) is None
