"""`broker groups reset-offsets`: plans new offsets for a group, shows them, and commits them with --execute.

As in Kafka's own tool nothing changes without --execute, and a group with members is refused: its members would
overwrite the new offsets.

Tests: tests/cli/test_group_reset.py.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import Moment, kafka
from broker.cli.output import output_option, print_object, print_table
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.admin.groups import Group
    from broker.client.kafka.admin.positions import Leaders, To
    from broker.client.kafka.values import TopicPartition

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SIMPLE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@attrs.frozen
class Change:
    """The change of a partition. ``committed``: None if the group has committed nothing."""

    topic: str
    partition: int
    committed: int | None
    offset: int


class _Partitions(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on only
    """TOPIC, or TOPIC:0,2-4."""

    name = "topic"

    def convert(
        self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        if isinstance(value, tuple):
            return value
        topic, colon, text = value.partition(":")
        if not colon:
            return topic, None
        numbers: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
            if match is None or int(match[2] or match[1]) < int(match[1]) or int(match[2] or 0) > 1_000_000:
                self.fail(f"write TOPIC or TOPIC:0,2-4, not {value!r}.", parameter, ctx)
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
        return topic, tuple(dict.fromkeys(numbers))


class _Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """PT1H30M, or 90m; in ms."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if simple := _SIMPLE.fullmatch(value):
            return int(float(simple["number"]) * _UNIT_MS[simple["unit"]])
        match = _DURATION.fullmatch(value)
        if match is None or not any(match.groups()):
            self.fail(f"write a duration as 90m, 12h or PT1H30M, not as {value!r}.", parameter, ctx)
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def topics_option(*, required: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--topic",
        "topics",
        type=_Partitions(),
        shell_complete=completing.topics,
        metavar="TOPIC[:PARTITIONS]",
        multiple=True,
        required=required,
        help="A topic, or some of its partitions, e.g. orders:0,2-4; can be repeated.",
    )


@click.command("reset-offsets")
@click.argument("group", shell_complete=completing.groups)
@topics_option()
@click.option("--all-topics", is_flag=True, help="Every partition for which the group has committed an offset.")
@click.option("--to-earliest", is_flag=True, help="To the first record that there is.")
@click.option("--to-latest", is_flag=True, help="To the end: only new records.")
@click.option("--to-current", is_flag=True, help="To what is committed now, brought into the range of the partition.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-time",
    "--to-datetime",
    "to_time",
    type=Moment(),
    metavar="TIME",
    help="To the first record at or after this time: 2026-11-20T14:00, ms since 1970, or -10m.",
)
@click.option(
    "--by-duration", type=_Duration(), metavar="DURATION", help="To the records of this long ago: 90m or PT1H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="By N offsets; backwards if N is negative.")
@click.option(
    "--from-file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="To the offsets in lines of TOPIC,PARTITION,OFFSET.",
)
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--dry-run", is_flag=True, help="Only show what would be committed; the default.")
@output_option
@broker_options
def reset_offsets(
    group: str,
    topics: tuple[tuple[str, tuple[int, ...] | None], ...],
    all_topics: bool,
    from_file: Any,
    execute: bool,
    dry_run: bool,
    as_json: bool,
    target: Target,
    **how: Any,
) -> None:
    """Set GROUP to other offsets. Without --execute nothing is changed, only shown.

    The group must have no members: stop its consumers first. An offset outside of what a partition has becomes the nearest one
    that it has. A share group delivers everything from its new start offsets on again, also what was acknowledged.
    """
    if execute and dry_run:
        raise click.UsageError("Give either --execute or --dry-run.")
    offsets = _given_offsets(from_file)
    to, number = _mode(how, offsets)
    if offsets is None and bool(topics) == all_topics:
        raise click.UsageError("Say which partitions: --topic TOPIC, --topic TOPIC:0,1, or --all-topics.")
    if offsets is not None and (topics or all_topics):
        raise click.UsageError("--from-file names the partitions: leave out --topic and --all-topics.")

    from broker.client.kafka.admin import groups

    with kafka(target, "groups") as cluster:
        described = groups.describe_group(cluster.routing, group)
        if execute:
            _refuse_members(described)
        changes = _plan(cluster, described, topics, offsets, to, number)
        if execute:
            _commit(cluster, described, changes)
    _print(group, changes, execute, as_json)
    if not execute:
        busy = f" The group has {_members(described)}: stop its consumers first." if described.has_members else ""
        click.echo(f"Nothing was changed: add --execute to commit these offsets.{busy}", err=True)


def _mode(how: Mapping[str, Any], offsets: Mapping["TopicPartition", int] | None) -> "tuple[To, int]":
    """The mode, and its number: an offset, a shift, or a time in ms."""
    from broker.client.kafka.admin.positions import To

    modes = [
        (To.EARLIEST, 0 if how["to_earliest"] else None),
        (To.LATEST, 0 if how["to_latest"] else None),
        (To.CURRENT, 0 if how["to_current"] else None),
        (To.OFFSET, how["to_offset"]),
        (To.TIME, how["to_time"]),
        (To.TIME, None if how["by_duration"] is None else SystemClock.time_ms() - how["by_duration"]),
        (To.SHIFT, how["shift_by"]),
        (To.OFFSET, None if offsets is None else 0),
    ]
    asked = [(to, number) for to, number in modes if number is not None]
    if len(asked) != 1:
        raise click.UsageError(
            "Say to what, once: --to-earliest, --to-latest, --to-current, --to-offset N, --to-time TIME,"
            " --by-duration DURATION, --shift-by N or --from-file FILE."
        )
    return asked[0]


def _given_offsets(file: Any) -> "dict[TopicPartition, int] | None":
    if file is None:
        return None
    offsets = {}
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r'\s*"?([^",\s]+)"?\s*,\s*(\d{1,9})\s*,\s*(\d{1,18})\s*', line)
        if match is None:
            raise click.UsageError(f"Line {number} of {file.name} must be TOPIC,PARTITION,OFFSET.")
        offsets[match[1], int(match[2])] = int(match[3])
    if not offsets:
        raise click.UsageError(f"{file.name} has no line TOPIC,PARTITION,OFFSET.")
    return offsets


def _members(group: "Group") -> str:
    count = len(group.members)
    return f"{count} member{'s' * (count != 1)} (state {group.state})"


def _refuse_members(group: "Group") -> None:
    if group.has_members:
        raise BrokerError(f"The group {group.group!r} has {_members(group)}: stop its consumers first.")


def _plan(
    cluster: "Cluster",
    group: "Group",
    topics: tuple[tuple[str, tuple[int, ...] | None], ...],
    offsets: "Mapping[TopicPartition, int] | None",
    to: "To",
    number: int,
) -> list[Change]:
    from broker.client.kafka.admin.positions import Facts, To, new_offset
    from broker.client.kafka.values import EARLIEST, LATEST

    wanted = topics
    if not wanted:
        named = sorted(offsets if offsets is not None else _committed(cluster, group))
        wanted = tuple((topic, (partition,)) for topic, partition in named)
    if not wanted:
        raise BrokerError(f"The group {group.group!r} has committed nothing: name the topics with --topic.")
    leaders = partition_leaders(cluster, wanted)
    committed = _committed(cluster, group, list(leaders))
    starts = _offsets(cluster, leaders, EARLIEST)
    ends = _offsets(cluster, leaders, LATEST)
    times = _offsets(cluster, leaders, number) if to is To.TIME else {}
    return [
        Change(
            *key,
            committed.get(key),
            new_offset(
                to,
                number if offsets is None else offsets[key],
                Facts(starts[key] or 0, ends[key] or 0, committed.get(key), times.get(key)),
            ),
        )
        for key in sorted(leaders)
    ]


def _committed(
    cluster: "Cluster", group: "Group", partitions: "list[TopicPartition] | None" = None
) -> "dict[TopicPartition, int]":
    """The committed offsets of these partitions, or of all; for a share group its start offsets."""
    from broker.client.kafka.admin.groups import SHARE, start_offsets

    if group.type == SHARE:
        return {key: position.start for key, position in start_offsets(cluster.routing, group.group).items()}
    committed = cluster.committed(group.group) if partitions is None else cluster.committed(group.group, partitions)
    return {key: position.offset for key, position in committed.items()}


def partition_leaders(cluster: "Cluster", wanted: tuple[tuple[str, tuple[int, ...] | None], ...]) -> "Leaders":
    """The leader of each named partition, or of all partitions of a topic. Raises BrokerError for a missing
    partition."""
    from broker.client.kafka.admin.configs import check_exists, describe_topics

    described = describe_topics(cluster.routing, {topic for topic, _ in wanted})
    for topic in described.topics:
        check_exists(topic)
    leaders = described.leaders()
    chosen = {}
    for name, numbers in wanted:
        own = sorted(partition for topic, partition in leaders if topic == name)
        for partition in own if numbers is None else numbers:
            if (name, partition) not in leaders:
                raise BrokerError(f"The topic {name!r} has {len(own)} partitions, and no partition {partition}.")
            chosen[name, partition] = leaders[name, partition]
    return chosen


def _offsets(cluster: "Cluster", leaders: "Leaders", time: int) -> "dict[TopicPartition, int | None]":
    from broker.client.kafka.admin.positions import offsets_at
    from broker.client.kafka.errors import code_name

    positions = offsets_at(cluster.routing, leaders, dict.fromkeys(leaders, time))
    for (topic, partition), position in positions.items():
        if position.code:
            raise BrokerError(
                f"{topic}-{partition} cannot be read ({code_name(position.code)}): leave it out with --topic TOPIC:PARTITIONS."
            )
    return {key: position.offset for key, position in positions.items()}


def _commit(cluster: "Cluster", group: "Group", changes: list[Change]) -> None:
    from broker.client.kafka.admin.groups import SHARE
    from broker.client.kafka.errors import BrokerAnswerError
    from protocol.kafka.errors import ErrorCode

    offsets = {(change.topic, change.partition): change.offset for change in changes}
    has_members = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress)
    try:
        if group.type == SHARE:
            _set_start_offsets(cluster, group.group, offsets)
        else:
            cluster.commit(group.group, offsets)
    except BrokerAnswerError as error:
        if error.code in (*has_members, ErrorCode.non_empty_group):
            raise BrokerError(f"The group {group.group!r} has members: stop its consumers first.") from error
        raise


def _set_start_offsets(cluster: "Cluster", group: str, offsets: "dict[TopicPartition, int]") -> None:
    from broker.client.kafka.admin.groups import set_start_offsets
    from broker.client.kafka.errors import code_name

    codes = set_start_offsets(cluster.routing, group, offsets)
    failed = [f"{topic}-{number}: {code_name(code)}" for (topic, number), code in sorted(codes.items()) if code]
    if failed:
        raise BrokerError(f"The start offsets of some partitions were not set: {'; '.join(failed)}.")


def _print(group: str, changes: list[Change], executed: bool, as_json: bool) -> None:
    if not as_json:
        rows = [(change.topic, change.partition, change.committed, change.offset) for change in changes]
        print_table(["topic", "partition", "committed", "new offset"], rows)
        return
    for change in changes:
        print_object(
            {
                "group": group,
                "topic": change.topic,
                "partition": change.partition,
                "committed": change.committed,
                "new_offset": change.offset,
                "executed": executed,
            }
        )
