"""The callbacks that run when a log grows."""

from broker.storage.log.state import Watchers


def test_watchers_are_called_until_they_unwatch() -> None:
    watchers, calls = Watchers(), []
    first = watchers.watch(lambda: calls.append("first"))
    second = watchers.watch(lambda: calls.append("second"))
    watchers.wake()
    watchers.unwatch(first)
    watchers.wake()
    assert ["first", "second", "second"] == calls
    watchers.unwatch(second)
    assert not watchers.callbacks


def test_token_is_unique_and_unknown_one_does_nothing() -> None:
    watchers = Watchers()
    tokens = set()
    for _ in range(3):
        token = watchers.watch(lambda: None)
        tokens.add(token)
        watchers.unwatch(token)
        watchers.unwatch(token)
    assert 3 == len(tokens)


def test_a_callback_may_watch_and_unwatch() -> None:
    watchers, calls = Watchers(), []

    def once() -> None:
        calls.append("once")
        watchers.unwatch(token)
        watchers.watch(lambda: calls.append("again"))

    token = watchers.watch(once)
    watchers.wake()
    watchers.wake()
    assert ["once", "again"] == calls
