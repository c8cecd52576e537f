"""Six classic bugs in consumers and producers of confluent-kafka: the marker finds each within 20 seeds and shrinks it to at
most two faults; what is right instead passes all of them.
"""

import re
from pathlib import Path

import pytest

from tests.client.test_pytest_plugin import Run, run_by_hand, users
from tests.client.test_pytest_plugin_chaos import plans, section

__all__ = ["run_by_hand", "users"]

BUGS = Path(__file__).parent / "classic_bugs.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "takes_part"),
    [
        ("commit_before_processing", '"error", api="PRODUCE"'),
        ("at_most_once_by_mistake", '"error", api="PRODUCE"'),
        ("non_idempotent_sink", '"error(_after)?", api="OFFSET_COMMIT"'),
        ("lost_rebalance_callback", '"rebalance", api="OFFSET_COMMIT"'),
        ("ignored_delivery_errors", '"error", api="PRODUCE"'),
        ("transaction_without_abort", '"error", api="(PRODUCE|TXN_OFFSET_COMMIT)"'),
    ],
)
def test_bug_is_found_and_its_correction_passes(run_by_hand: Run, users: Path, name: str, takes_part: str) -> None:
    (users / "test_bugs.py").write_text(BUGS.read_text("utf-8"))
    status, output = run_by_hand(users, "--strict-markers", "-k", f"test_{name}", timeout=280)
    assert 1 == status, output
    assert "1 failed, 1 passed" in output, output
    assert f"test_{name}[bad]" in output
    said = section(output)
    seed = re.search(r"^Seed (\d+) fails", said, re.MULTILINE)
    assert seed is not None and int(seed[1]) < 20
    smallest = plans(said)[-1]
    assert len(smallest) <= 2, said
    assert any(re.search(takes_part, call) for call in smallest), said
