"""`broker top`: topics by rate and groups by lag, live, with Kafka's protocol, so that it works with any Kafka broker.

On a terminal it shows a screen until q or Ctrl-C, and ends with 0; elsewhere it prints one sample as lines, and a
Ctrl-C before that is an interrupt as in any command (130). If --admin-url names the http:// listener of this project's
broker, its rates of requests are shown, too.

``take`` samples a cluster's offsets; ``view``, which is pure, computes rates and lags from two samples. Rates are known
from the second sample on.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.cli.admin_api import AdminApi, parse_admin_url
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.output import is_formatted, output_option, print_object, print_table
from broker.errors import BrokerError
from broker.runtime.terminal import Keyboard

if TYPE_CHECKING:
    from rich.console import RenderableType

    from broker.client.kafka import Cluster
    from broker.client.kafka.values import TopicPartition


# The maximum number of groups: each costs a request a sample.
GROUPS_MAX = 200


@attrs.frozen
class Sample:
    """``at_s``: monotonic time. ``ends``: the end offset of each readable partition; ``unread``: the other partitions.
    ``states``: the groups and their states; ``committed``: the offsets of the groups that were asked for."""

    at_s: float
    ends: "Mapping[TopicPartition, int]"
    unread: "frozenset[TopicPartition]"
    states: Mapping[str, str]
    committed: "Mapping[str, Mapping[TopicPartition, int]]"


@attrs.frozen
class TopicLine:
    """``rate``: records/s, None while unknown. ``lag``: the sum over all groups that read the topic, None without
    groups."""

    topic: str
    partitions: int
    offline: int
    rate: float | None
    records: int
    lag: int | None


@attrs.frozen
class GroupLine:
    """``rate``: records/s that the group commits. ``left_s``: time until it has caught up at these rates; None for
    never."""

    group: str
    state: str
    topics: int
    lag: int
    rate: float | None
    left_s: float | None


@attrs.frozen
class View:
    """Topics by rate, groups by lag. ``rate``: of all topics. ``hidden``: the number of groups that were not asked
    for."""

    topics: Sequence[TopicLine]
    groups: Sequence[GroupLine]
    rate: float | None
    hidden: int


def take(cluster: "Cluster", internal: bool) -> Sample:
    from broker.client.kafka.admin.configs import describe_topics
    from broker.client.kafka.admin.groups import list_groups
    from broker.client.kafka.admin.positions import offsets_at
    from broker.client.kafka.errors import BrokerAnswerError, UnsupportedVersionError
    from broker.client.kafka.values import LATEST

    routing = cluster.routing
    described = describe_topics(routing)
    shown = {
        topic.name for topic in described.topics if internal or not (topic.is_internal or topic.name.startswith("__"))
    }
    leaders = {key: leader for key, leader in described.leaders().items() if key[0] in shown}
    at = cluster.clock.monotonic()
    positions = offsets_at(routing, leaders, dict.fromkeys(leaders, LATEST))
    ends = {key: position.offset for key, position in positions.items() if position.offset is not None}
    try:
        states = {listed.group: listed.state for listed in list_groups(routing)}
    except UnsupportedVersionError:  # a broker that is not Kafka itself
        states = {}
    committed = {}
    for group in sorted(states)[:GROUPS_MAX]:
        try:
            committed[group] = {key: position.offset for key, position in cluster.committed(group).items()}
        except BrokerAnswerError:  # it was deleted meanwhile, or the user may not see it
            continue
    return Sample(at, ends, frozenset(positions.keys() - ends.keys()), states, committed)


def view(before: Sample | None, now: Sample) -> View:
    passed = now.at_s - before.at_s if before is not None else 0.0
    rates = {} if before is None or passed <= 0 else _rates(before.ends, now.ends, passed)
    by_topic: dict[str, list[TopicPartition]] = {}
    for key in sorted([*now.ends, *now.unread]):
        by_topic.setdefault(key[0], []).append(key)
    lags = {group: _lags(own, now.ends) for group, own in now.committed.items()}
    of_topics: dict[str, int] = {}
    for own in lags.values():
        for (topic, _), lag in own.items():
            of_topics[topic] = of_topics.get(topic, 0) + lag
    topics = [
        TopicLine(
            topic,
            len(keys),
            sum(key in now.unread for key in keys),
            sum(rates.get(key, 0.0) for key in keys) if rates or passed > 0 else None,
            sum(now.ends.get(key, 0) for key in keys),
            of_topics.get(topic),
        )
        for topic, keys in by_topic.items()
    ]
    groups = [_group(group, before, now, lags[group], rates, passed) for group in lags]
    return View(
        sorted(topics, key=lambda line: (-(line.rate or 0.0), line.topic)),
        sorted(groups, key=lambda line: (-line.lag, line.group)),
        sum(rates.values()) if passed > 0 else None,
        len(now.states) - len(now.committed),
    )


def _rates(
    before: "Mapping[TopicPartition, int]", now: "Mapping[TopicPartition, int]", passed: float
) -> "dict[TopicPartition, float]":
    """All records of a new partition belong to this interval. A partition whose end went back was created again."""
    rates = {}
    for key, end in now.items():
        start = before.get(key, 0)
        rates[key] = (end - start if end >= start else end) / passed
    return rates


def _lags(
    committed: "Mapping[TopicPartition, int]", ends: "Mapping[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    return {key: max(0, ends[key] - offset) for key, offset in committed.items() if key in ends}


def _group(
    group: str,
    before: Sample | None,
    now: Sample,
    lags: "Mapping[TopicPartition, int]",
    rates: "Mapping[TopicPartition, float]",
    passed: float,
) -> GroupLine:
    committed = now.committed[group]
    lag, rate, left = sum(lags.values()), None, None
    if before is not None and passed > 0 and group in before.committed:
        earlier = before.committed[group]
        # The rate of a group that was set back is not negative.
        moved = sum(max(0, offset - earlier[key]) for key, offset in committed.items() if key in earlier)
        rate = moved / passed
        gains = rate - sum(rates.get(key, 0.0) for key in committed)
        left = 0.0 if not lag else lag / gains if gains > 0 else None
    return GroupLine(group, now.states[group], len({topic for topic, _ in committed}), lag, rate, left)


_TOPIC_COLUMNS = ("topic", "partitions", "offline", "records/s", "end offsets", "lag")
_GROUP_COLUMNS = ("group", "state", "topics", "lag", "records/s", "caught up in s")
# A broker that takes longer for a sample is reported as a problem, so that q is noticed.
_SAMPLE_MS = 5000
# Lines of the screen that are not rows of a table.
_AROUND = 9


@click.command()
@click.option(
    "--interval",
    "-i",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two samples.",
)
@click.option("--internal", is_flag=True, help="Also topics whose names begin with __.")
@click.option("--once", is_flag=True, help="Print one sample and end, also on a terminal.")
@click.option(
    "--admin-url",
    "-a",
    metavar="URL",
    envvar="BROKER_ADMIN_URL",
    help="The broker's http:// listener, for rates of requests (or BROKER_ADMIN_URL).",
)
@output_option
@broker_options
def command(interval: float, internal: bool, once: bool, admin_url: str | None, as_json: bool, target: Target) -> None:
    """Watch the topics by rate and the groups by lag. q or Ctrl-C ends it.

    Where the output is no terminal, one sample is printed, as lines that begin with `topic` or `group`: the columns are those of
    the screen, and rates are those between two samples.
    """
    api = None if admin_url is None else parse_admin_url(admin_url, target.config("top").security)
    with kafka(target, "top") as cluster, Keyboard() as keyboard:
        if once or as_json or not is_formatted():
            before = take(cluster, internal)
            keyboard.wait(interval)
            shown, requests = view(before, take(cluster, internal)), _requests(api)
            _print_as_json(shown, requests) if as_json else _print(shown, requests)
            return
        _watch(_Screen(target.bootstrap, cluster, internal, api), keyboard, interval)


def _requests(api: AdminApi | None) -> dict[str, Any] | None:
    """From the broker's overview: requests, errors and bytes a second, and the free bytes of its disk."""
    if api is None:
        return None
    answer = api.ask("GET", "/api/v1/overview")
    rates = answer.get("rates") if isinstance(answer, dict) else None
    if not isinstance(rates, dict):
        raise BrokerError(f"{api.host}:{api.port} does not tell its rates: is this an http:// listener of this broker?")
    free = answer.get("free_bytes")
    return {
        "rates": {name: value for name, value in rates.items() if isinstance(value, (int, float))},
        "free_bytes": free if isinstance(free, int) else None,
    }


def _rows(shown: View) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    topics: list[tuple[object, ...]] = [
        (line.topic, line.partitions, line.offline, _rounded(line.rate), line.records, line.lag)
        for line in shown.topics
    ]
    groups: list[tuple[object, ...]] = [
        (line.group, line.state or None, line.topics, line.lag, _rounded(line.rate), _rounded(line.left_s))
        for line in shown.groups
    ]
    return topics, groups


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _print(shown: View, requests: dict[str, Any] | None) -> None:
    topics, groups = _rows(shown)
    if is_formatted():
        print_table(_TOPIC_COLUMNS, topics)
        print_table(_GROUP_COLUMNS, groups)
    else:
        print_table(_TOPIC_COLUMNS, [("topic", *row) for row in topics])
        print_table(_GROUP_COLUMNS, [("group", *row) for row in groups])
    if requests is not None:
        print_table(["rate", "per s"], [(name, _rounded(value)) for name, value in requests["rates"].items()])
        print_table(["disk", "bytes"], [("free", requests["free_bytes"])])


def _print_as_json(shown: View, requests: dict[str, Any] | None) -> None:
    for topic in shown.topics:
        print_object(attrs.asdict(topic))
    for group in shown.groups:
        print_object(attrs.asdict(group))
    if requests is not None:
        print_object(requests)


class _Screen:
    """The screen. Its first line reports a broker that does not answer for a while."""

    def __init__(self, address: str, cluster: "Cluster", internal: bool, api: AdminApi | None) -> None:
        self._address = address
        self._cluster = cluster
        self._internal = internal
        self._api = api
        self._last: Sample | None = None
        self._found: View | None = None
        self._requests: dict[str, Any] | None = None
        self._problem = ""

    def refresh(self) -> None:
        try:
            with self._cluster.routing.limit.within(_SAMPLE_MS):
                now = take(self._cluster, self._internal)
            self._found, self._last = view(self._last, now), now
            self._requests = _requests(self._api)
            self._problem = ""
        except BrokerError as error:
            self._problem = str(error)

    def render(self, height: int) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = [Text(self._heading(), style="bold", no_wrap=True, overflow="ellipsis")]
        if self._problem:
            lines.append(Text(self._problem, style="red", no_wrap=True, overflow="ellipsis"))
        if self._found is not None:
            topics, groups = _rows(self._found)
            rows = max(2, height - _AROUND)
            # The groups get up to half of the screen, the topics the rest.
            of_groups = min(len(groups), max(rows // 2, rows - len(topics)))
            lines += [_table(_TOPIC_COLUMNS, topics, rows - of_groups), _table(_GROUP_COLUMNS, groups, of_groups)]
        return Group(*lines)

    def _heading(self) -> str:
        parts = [self._address]
        if self._found is not None:
            rate, hidden = self._found.rate, self._found.hidden
            parts.append(f"{len(self._found.topics)} topics")
            parts.append("rates after the next sample" if rate is None else f"{rate:,.0f} records/s")
            parts.append(f"{len(self._found.groups)} groups" + (f" ({hidden} more not shown)" if hidden else ""))
        if self._requests is not None:
            parts += [
                f"{name.replace('_', ' ')} {value:,.0f}/s"
                for name, value in self._requests["rates"].items()
                if name != "messages_in"
            ]
            if self._requests["free_bytes"] is not None:
                parts.append(f"{self._requests['free_bytes'] / (1 << 30):,.1f} GiB free")
        return "   ".join([*parts, "q: quit"])


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]], most: int) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=f"{len(rows) - most} more" if len(rows) > most else None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or column == "state" else "right", no_wrap=True)
    for row in rows[:most]:
        table.add_row(
            *(
                Text("-" if cell is None else f"{cell:,}" if isinstance(cell, (int, float)) else str(cell))
                for cell in row
            )
        )
    return table


def _watch(screen: _Screen, keyboard: Keyboard, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    # Ctrl-C is a usual way to leave the screen, not a failure.
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in _until_quit(keyboard, interval):
            screen.refresh()
            live.update(screen.render(console.size.height), refresh=True)


def _until_quit(keyboard: Keyboard, interval: float) -> Iterator[None]:
    """Yields once for each sample, until q is pressed."""
    yield
    while "q" not in keyboard.wait(interval).lower():
        yield
