"""`broker top`: topics by rate and groups by lag, live, with Kafka's protocol, so that it works with any Kafka broker.

On a terminal it shows a screen until q or Ctrl-C, and ends with 0; elsewhere it prints one sample as lines, and a Ctrl-C before
that is an interrupt as in any command (130). Where --admin-url names the http:// listener of this project's broker, its rates of
requests are shown, too.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.cli.admin_api import AdminApi, parse_admin_url
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.output import is_formatted, output_option, print_object, print_table
from broker.cli.top_rates import Sample, View, take, view
from broker.errors import BrokerError
from broker.runtime.keyboard import Keyboard

if TYPE_CHECKING:
    from rich.console import RenderableType

    from broker.client.kafka import Cluster

_TOPIC_COLUMNS = ("topic", "partitions", "offline", "records/s", "end offsets", "lag")
_GROUP_COLUMNS = ("group", "state", "topics", "lag", "records/s", "caught up in s")
# A broker that takes longer for a sample is told as a problem, and q is noticed.
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
            found, requests = view(before, take(cluster, internal)), _requests(api)
            _print_as_json(found, requests) if as_json else _print(found, requests)
            return
        _watch(_Screen(target.bootstrap, cluster, internal, api), keyboard, interval)


def _requests(api: AdminApi | None) -> dict[str, Any] | None:
    """Of the broker's overview: requests, errors and bytes a second, and how many bytes its disk has left."""
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


def _rows(found: View) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    topics: list[tuple[object, ...]] = [
        (one.topic, one.partitions, one.offline, _rounded(one.rate), one.records, one.lag) for one in found.topics
    ]
    groups: list[tuple[object, ...]] = [
        (one.group, one.state or None, one.topics, one.lag, _rounded(one.rate), _rounded(one.left_s))
        for one in found.groups
    ]
    return topics, groups


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _print(found: View, requests: dict[str, Any] | None) -> None:
    topics, groups = _rows(found)
    if is_formatted():
        print_table(_TOPIC_COLUMNS, topics)
        print_table(_GROUP_COLUMNS, groups)
    else:
        print_table(_TOPIC_COLUMNS, [("topic", *row) for row in topics])
        print_table(_GROUP_COLUMNS, [("group", *row) for row in groups])
    if requests is not None:
        print_table(["rate", "per s"], [(name, _rounded(value)) for name, value in requests["rates"].items()])
        print_table(["disk", "bytes"], [("free", requests["free_bytes"])])


def _print_as_json(found: View, requests: dict[str, Any] | None) -> None:
    for topic in found.topics:
        print_object(attrs.asdict(topic))
    for group in found.groups:
        print_object(attrs.asdict(group))
    if requests is not None:
        print_object(requests)


class _Screen:
    """What is on the screen. A broker that does not answer for a while is told in its first line."""

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
            # The groups get up to half of the screen, the topics what is left.
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
    # Ctrl-C is a usual way to leave, and no failure.
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in _until_quit(keyboard, interval):
            screen.refresh()
            live.update(screen.render(console.size.height), refresh=True)


def _until_quit(keyboard: Keyboard, interval: float) -> Iterator[None]:
    """Once for each sample, until q is pressed."""
    yield
    while "q" not in keyboard.wait(interval).lower():
        yield
