"""The sum of what all processors of a plane have queued."""

from broker.network.expiry import Unsent


def test_expiry_report_replaces_older_and_sums_over_processors() -> None:
    unsent = Unsent(100)
    assert unsent.total == 0
    unsent.report(0, 60)
    unsent.report(1, 40)
    assert unsent.total == 100
    unsent.report(0, 10)
    assert unsent.total == 50


def test_too_much_is_more_than_the_limit() -> None:
    unsent = Unsent(100)
    unsent.report(0, 100)
    assert not unsent.too_much
    unsent.report(1, 1)
    assert unsent.too_much
    unsent.report(1, 0)
    assert not unsent.too_much
