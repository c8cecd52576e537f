"""What many requests share."""

from broker.runtime.limits import Allowance


def test_an_allowance_is_never_exceeded() -> None:
    allowance = Allowance(10)
    assert allowance.take(6)
    assert not allowance.take(5)
    assert allowance.take(4)
    allowance.give_back(6)
    assert (allowance.taken, allowance.take(6)) == (4, True)
