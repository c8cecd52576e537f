"""`broker groups`: the groups, their members and their lag, with Kafka's protocol, so that it works with any Kafka
broker.

``group_reset.py`` has the command that sets a group to other offsets.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.group_reset import reset_offsets, topics_option
from broker.cli.output import output_option, print_done, print_object, print_rows, print_table, say
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.admin.groups import Group, ListedGroup
    from broker.client.kafka.admin.positions import PartitionLag

_LAG_COLUMNS = ("topic", "partition", "committed", "end offset", "lag", "lag s", "member", "client", "host")
_SHARE_COLUMNS = ("topic", "partition", "start offset", "end offset", "lag", "lag s")
# Kinds of Kafka's groups that are not described here.
_OTHER_KINDS = ("streams",)


@click.group()
def command() -> None:
    """List, describe, reset and delete groups of consumers and share groups."""


@command.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only groups in this state, e.g. Empty.")
@output_option
@broker_options
def list_groups(states: tuple[str, ...], as_json: bool, target: Target) -> None:
    """List the groups, one per line."""
    from broker.client.kafka.admin import groups

    with kafka(target, "groups") as cluster:
        listed = groups.list_groups(cluster.routing)
    wanted = {state.lower() for state in states}
    rows = [
        (group.group, group.type or None, group.state or None, group.protocol_type)
        for group in listed
        if not wanted or group.state.lower() in wanted
    ]
    print_rows(["group", "type", "state", "protocol"], rows, as_json)


@command.command()
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=completing.groups)
@click.option("--members", is_flag=True, help="Show the members and their partitions instead of the lag.")
@click.option("--state", "state_only", is_flag=True, help="Show only the state, without the lag.")
@output_option
@broker_options
def describe(names: tuple[str, ...], members: bool, state_only: bool, as_json: bool, target: Target) -> None:
    """Show the lag of groups (by default, of all groups), partition by partition.

    The lag is in records and in seconds: the age of the first record that the group has not committed. A partition that has a
    member but no committed offset is shown with `-`.

    For a share group the start offset takes the place of the committed one: everything before it is done with. Its lag does not
    count what is acknowledged beyond the start offset.
    """
    from broker.client.kafka.admin import groups
    from broker.client.kafka.admin.positions import lag_of

    with kafka(target, "groups") as cluster:
        routing = cluster.routing
        wanted = list(dict.fromkeys(names))
        if not wanted:
            wanted = [listed.group for listed in groups.list_groups(routing) if listed.type not in _OTHER_KINDS]
        for index, name in enumerate(wanted):
            group = groups.describe_group(routing, name)
            own = [] if members or state_only else lag_of(routing, group, SystemClock.time_ms())
            missing = group.state in (groups.DEAD, groups.UNKNOWN)
            if names and missing and not own and not _has_committed(cluster, group):
                _refuse_other_kinds(groups.list_groups(routing), name)
                raise BrokerError(f"There is no group {name!r}.")
            if members:
                _print_members(group, as_json)
                continue
            if as_json:
                _print_lag_as_json(group, own, state_only)
                continue
            if index and not state_only:
                say()
            say(_heading(group))
            if not state_only:
                _print_lag(group, own)


def _has_committed(cluster: "Cluster", group: "Group") -> bool:
    return bool(cluster.committed(group.group))


def _refuse_other_kinds(listed: "Sequence[ListedGroup]", name: str) -> None:
    for group in listed:
        if group.group == name and group.type in _OTHER_KINDS:
            limit = "only groups of consumers and share groups are described here"
            raise BrokerError(f"The group {name!r} is a {group.type} group: {limit}.")


def _heading(group: "Group") -> str:
    count = len(group.members)
    who = f"{count} member{'s' * (count != 1)}"
    how = f", {group.assignor}" if group.assignor else ""
    return f"{group.group}: {group.state}, {who}{how}, coordinator {group.coordinator}"


def _print_lag(group: "Group", own: "Sequence[PartitionLag]") -> None:
    from broker.client.kafka.admin.groups import SHARE

    if group.type == SHARE:  # several members may have a partition: --members shows which
        print_table(_SHARE_COLUMNS, [_shown(lag) for lag in own])
        return
    rows = [
        (
            *_shown(lag),
            lag.member and lag.member.member_id,
            lag.member and lag.member.client_id,
            lag.member and lag.member.host,
        )
        for lag in own
    ]
    print_table(_LAG_COLUMNS, rows)


def _shown(lag: "PartitionLag") -> tuple[object, ...]:
    lag_s = None if lag.lag_s is None else round(lag.lag_s, 1)
    return lag.topic, lag.partition, lag.committed, lag.problem or lag.end_offset, lag.lag, lag_s


def _print_lag_as_json(group: "Group", own: "Sequence[PartitionLag]", state_only: bool) -> None:
    """Print an object for each partition; with --state an object for the group."""
    if state_only:
        print_object(
            {
                "group": group.group,
                "type": group.type,
                "state": group.state,
                "members": len(group.members),
                "assignor": group.assignor,
                "coordinator": group.coordinator,
            }
        )
    for lag in own:
        print_object(
            {
                "group": group.group,
                "state": group.state,
                "topic": lag.topic,
                "partition": lag.partition,
                "committed": lag.committed,
                "end_offset": lag.end_offset,
                "lag": lag.lag,
                "lag_s": lag.lag_s,
                "problem": lag.problem,
                "member_id": lag.member and lag.member.member_id,
                "client_id": lag.member and lag.member.client_id,
                "host": lag.member and lag.member.host,
            }
        )


def _print_members(group: "Group", as_json: bool) -> None:
    rows = []
    for member in group.members:
        topics: dict[str, list[int]] = {}
        for topic, partition in member.partitions:
            topics.setdefault(topic, []).append(partition)
        if as_json:
            print_object(
                {
                    "group": group.group,
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "assignment": [{"topic": topic, "partitions": own} for topic, own in topics.items()],
                }
            )
            continue
        has = " ".join(f"{topic}:{','.join(map(str, sorted(own)))}" for topic, own in sorted(topics.items()))
        rows.append((group.group, member.member_id, member.instance_id, member.client_id, member.host, has or None))
    if not as_json:
        print_table(["group", "member", "instance", "client", "host", "partitions"], rows)


command.add_command(reset_offsets)


@command.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=completing.groups)
@click.option("--if-exists", is_flag=True, help="Do not fail if the group does not exist.")
@output_option
@broker_options
def delete(names: tuple[str, ...], if_exists: bool, as_json: bool, target: Target) -> None:
    """Delete groups and the offsets that they have committed. A group with members is refused."""
    from broker.client.kafka.admin import groups
    from broker.client.kafka.errors import BrokerAnswerError
    from protocol.kafka.errors import ErrorCode

    failed = []
    with kafka(target, "groups") as cluster:
        for name in dict.fromkeys(names):
            try:
                groups.delete_group(cluster.routing, name)
            except BrokerAnswerError as error:
                if error.code == ErrorCode.group_id_not_found:
                    if not if_exists:
                        failed.append(f"There is no group {name!r}")
                elif error.code == ErrorCode.non_empty_group:
                    failed.append(f"The group {name!r} has members: stop its consumers first")
                else:
                    failed.append(str(error).rstrip("."))
            else:
                print_done("deleted", "group", name, as_json)
    if failed:
        raise BrokerError("; ".join(failed) + ".")


@command.command("delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=completing.groups)
@topics_option(required=True)
@output_option
@broker_options
def delete_offsets(
    name: str, topics: tuple[tuple[str, tuple[int, ...] | None], ...], as_json: bool, target: Target
) -> None:
    """Forget what GROUP has committed for topics that its members do not read.

    A share group must have no members, and it forgets whole topics: it begins with them anew when a member comes.
    """
    from broker.client.kafka.admin import groups
    from broker.client.kafka.errors import code_name
    from protocol.kafka.errors import ErrorCode

    with kafka(target, "groups") as cluster:
        if groups.describe_group(cluster.routing, name).type == groups.SHARE:
            _forget_topics(cluster, name, topics, as_json)
            return
        committed = cluster.committed(name)
        if not committed:
            raise BrokerError(f"The group {name!r} has committed nothing.")
        wanted = sorted(
            (topic, partition)
            for topic, partition in committed
            if any(topic == chosen and (numbers is None or partition in numbers) for chosen, numbers in topics)
        )
        if not wanted:
            raise BrokerError(
                f"The group {name!r} has committed nothing for {', '.join(chosen for chosen, _ in topics)}."
            )
        failed = []
        for (topic, partition), code in sorted(groups.delete_offsets(cluster.routing, name, wanted).items()):
            if code == ErrorCode.group_subscribed_to_topic:
                failed.append(f"{topic}-{partition} is read by members of the group: stop its consumers first")
            elif code:
                failed.append(f"{topic}-{partition}: {code_name(code)}")
            else:
                print_done("deleted", "partition", f"{topic}-{partition}", as_json)
    if failed:
        raise BrokerError("; ".join(failed) + ".")


def _forget_topics(
    cluster: "Cluster", name: str, topics: tuple[tuple[str, tuple[int, ...] | None], ...], as_json: bool
) -> None:
    from broker.client.kafka.admin import groups
    from broker.client.kafka.errors import code_name
    from protocol.kafka.errors import ErrorCode

    if any(numbers is not None for _, numbers in topics):
        raise BrokerError(
            f"The group {name!r} is a share group, which forgets whole topics: give --topic without partitions."
        )
    failed = []
    for topic, code in groups.forget_topics(cluster.routing, name, [topic for topic, _ in topics]).items():
        if code == ErrorCode.unknown_topic_or_partition:
            failed.append(f"The group {name!r} has not begun with {topic}")
        elif code:
            failed.append(f"{topic}: {code_name(code)}")
        else:
            print_done("deleted", "topic", topic, as_json)
    if failed:
        raise BrokerError("; ".join(failed) + ".")
