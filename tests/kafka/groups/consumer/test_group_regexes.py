"""Members subscribe by regular expression, which the broker matches."""

import pytest

from broker import expressions
from broker.kafka.groups.consumer.values import ConsumerGroupLimits
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle, topic_id

needs_re2 = pytest.mark.skipif(not expressions.available(), reason="google-re2 is not installed")


@needs_re2
def test_member_gets_topics_that_match_as_a_whole() -> None:
    driver = GroupDriver.of(a=1, ab=1, b=1)
    client = Client(driver, "m", None, "a")
    client.beat()
    assert client.partitions == {(topic_id("a"), 0)}
    driver.pass_time(1.0)  # between two matchings
    other = Client(driver, "n", ("b",), "ab?")
    settle([client, other])
    assert other.partitions | client.partitions == {(topic_id(name), 0) for name in ("a", "ab", "b")}
    assert driver.group.topics == {"a", "ab", "b"}


@needs_re2
def test_new_matching_topic_is_assigned_after_a_pause() -> None:
    driver = GroupDriver.of(a=1)
    settle([client := Client(driver, "m", None, "a.*")])
    driver.set_topics(a=1, ab=2)
    client.beat()
    driver.pass_time(1.0)
    settle([client])
    assert client.count == 3


@needs_re2
def test_undescribable_topics_are_left_out() -> None:
    driver = GroupDriver.of(a=1, ab=2)
    driver.may_describe = lambda name: name != "ab"
    client = Client(driver, "m", None, "a.*")
    client.beat()
    assert client.count == 1
    driver.may_describe = lambda _: True
    for _ in range(15):
        driver.pass_time(44.0)
        client.beat()
    settle([client])
    assert client.count == 3, "rights are looked at again after ten minutes"


@needs_re2
def test_join_with_expression_waits_until_it_is_matched() -> None:
    driver = GroupDriver.of(a=1, is_lazy=True)
    client = Client(driver, "m", None, "a")
    driver.heartbeat(client.request(), client.take)
    driver.save()
    assert client.last is None
    driver.match()
    driver.work()
    assert client.count == 1


@needs_re2
def test_members_keep_known_topics_while_expression_is_matched() -> None:
    driver = GroupDriver.of(a=1, b=1, is_lazy=True)
    settle([first := Client(driver, "m", ("b",))])
    other = Client(driver, "n", None, "a")
    driver.heartbeat(other.request(), other.take)
    assert first.driver.group.heartbeat(first.request(), driver.topics, print, 0.0) is not None
    assert first.count == 1


@needs_re2
@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", "(((a{100}){100}){100})"])
def test_expression_invalid_for_re2_is_refused_without_change(pattern: str) -> None:
    driver = GroupDriver.of(a=1)
    result = Client(driver, "m", None, pattern).beat()
    assert result.error is ErrorCode.invalid_regular_expression
    assert (result.message or "").startswith(f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: ")
    assert driver.group.is_empty
    assert driver.rows == {}


@needs_re2
def test_expression_that_is_too_long_is_refused() -> None:
    result = Client(GroupDriver.of(a=1), "m", None, "a" * 1_000_000).beat()
    assert result.error is ErrorCode.invalid_regular_expression
    assert result.message == "SubscribedTopicRegex has 1000000 characters, and 8192 are allowed."


def test_missing_re2_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_INSTALLED", False)
    driver = GroupDriver.of(a=1)
    result = Client(driver, "m", None, "a").beat()
    assert result.error is ErrorCode.invalid_regular_expression
    assert "install google-re2" in (result.message or "")
    assert Client(driver, "m", ("a",)).beat().error is ErrorCode.none


@needs_re2
def test_new_expressions_are_matched_at_most_each_second() -> None:
    driver = GroupDriver.of(a=1)
    client = Client(driver, "m", None, "a0")
    client.beat()
    epochs = []
    for number in range(1, 6):
        client.regex = f"a{number}"
        driver.heartbeat(client.full_request(), client.take)
        epochs.append(client.epoch)
    assert not driver.regexes
    assert driver.group.topics is None
    driver.pass_time(1.0)
    assert driver.group.topics == frozenset()


@needs_re2
def test_expression_goes_when_its_last_member_goes() -> None:
    driver = GroupDriver.of(a=1, b=1)
    by_regex, by_name = Client(driver, "m", None, "a"), Client(driver, "n", ("b",))
    settle([by_regex, by_name])
    by_regex.leave()
    settle([by_name])
    assert by_name.partitions == {(topic_id("b"), 0)}
    assert driver.group.topics == {"b"}


@needs_re2
def test_partitions_stay_after_restart_while_expressions_are_matched() -> None:
    driver = GroupDriver.of(a=4)
    clients = [Client(driver, "m", None, "a"), Client(driver, "n", None, "a")]
    settle(clients)
    epoch = driver.group.epoch
    driver.is_lazy = True
    driver.restart()
    for client in clients:
        assert client.beat().assignment is None
    driver.work()
    assert settle(clients) == 0
    assert driver.group.epoch == epoch


@needs_re2
def test_matching_that_fails_is_tried_again() -> None:
    driver = GroupDriver.of(a=1, is_lazy=True)
    client = Client(driver, "m", None, "a")
    driver.heartbeat(client.request(), client.take)
    [task] = driver.regexes
    task.patterns = ("(",)
    driver.match()
    driver.work()
    assert client.last is None
    driver.pass_time(1.0)
    driver.work()
    assert client.count == 1


@needs_re2
def test_many_topics_are_matched_in_slices() -> None:
    driver = GroupDriver.of(is_lazy=True, **{f"t{number}": 1 for number in range(1200)})
    client = Client(driver, "m", None, "t1.*")
    driver.heartbeat(client.request(), client.take)
    [task] = driver.regexes
    slices = 1
    while not task.run_slice():
        slices += 1
    assert slices == 4
    assert task.matches is not None
    assert len(task.matches["t1.*"]) == 311


def test_limits_are_kafkas() -> None:
    assert ConsumerGroupLimits().regex_refresh_interval_ms == 600_000
