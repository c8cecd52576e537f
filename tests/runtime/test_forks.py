"""Who is told in a forked child, and that nobody is told in the parent."""

import os

import pytest

from broker.runtime import forks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
    # Python warns of forks beside threads, from 3.12 on.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Owner:
    def __init__(self) -> None:
        self.told = 0

    def forked(self) -> None:
        self.told += 1


def exit_status_of_child(check: object) -> int:
    """Fork; the child exits with 0 if ``check()`` is true there."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if check() else 2  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_owner_is_told_once_in_child_not_parent() -> None:
    owner = Owner()
    forks.tell(owner)
    before = forks.count()

    def check() -> bool:
        # A child of this child must not tell it again: it is no longer known.
        return owner.told == 1 and forks.count() == before + 1 and exit_status_of_child(lambda: owner.told == 1) == 0

    assert exit_status_of_child(check) == 0
    assert owner.told == 0
    assert forks.count() == before


def test_unused_owner_is_forgotten() -> None:
    forks.tell(Owner())
    assert exit_status_of_child(lambda: True) == 0


def test_functions_of_modules_come_before_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Ordered:
        def forked(self) -> None:
            order.append("owner")

    owner = Ordered()
    forks.tell(owner)
    monkeypatch.setattr(forks._forks, "functions", [*forks._forks.functions])
    forks.call_in_child(lambda: order.append("function"))
    assert exit_status_of_child(lambda: order == ["function", "owner"]) == 0
    assert order == []
