"""Which lines are stored, at every moment."""

from hypothesis import given
from hypothesis import strategies as st

from broker.cli.record_sender import Ledger


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=10), st.data())
def test_the_first_missing_line_of_a_partition(chunks: list[list[int]], data: st.DataObject) -> None:
    """``chunks``: the partition of each line, chunk by chunk."""
    ledger = Ledger()
    sent: dict[int, list[int]] = {0: [], 1: [], 2: []}
    acknowledged = {0: 0, 1: 0, 2: 0}
    number = 0
    for chunk in chunks:
        rows: dict[int, list[int]] = {}
        for partition in chunk:
            number += 1
            rows.setdefault(partition, []).append(number)
        for partition, lines in rows.items():
            ledger.sent(partition, lines)
            sent[partition] += lines
            acknowledged[partition] = data.draw(st.integers(acknowledged[partition], len(sent[partition])))
            ledger.acknowledged(partition, acknowledged[partition])
    for partition, lines in sent.items():
        missing = lines[acknowledged[partition] :]
        assert (missing[0] if missing else None) == ledger.first_missing(partition, acknowledged[partition])
