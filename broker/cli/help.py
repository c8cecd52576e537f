"""`broker help`: prints the help of a command, and an example, which docs/COMMANDS.md shows, too. The tests parse the
examples.

Tests: tests/cli/test_completion.py.
"""

import click

EXAMPLES: dict[str, str] = {
    "serve": "broker serve --data-dir /var/lib/broker --listener kafka://127.0.0.1:9092 --set num_partitions=3",
    "topics create": "broker topics create orders --partitions 3 --config retention.ms=86400000",
    "topics list": "broker topics list --output json",
    "topics describe": "broker topics describe orders",
    "topics alter": "broker topics alter orders --partitions 6 --config retention.ms=3600000 --delete-config cleanup.policy",
    "topics delete": "broker topics delete orders --if-exists",
    "groups list": "broker groups list --state Stable",
    "groups describe": "broker groups describe billing",
    "groups reset-offsets": "broker groups reset-offsets billing --topic orders:0,2-4 --to-time -2h --execute",
    "groups delete": "broker groups delete billing",
    "groups delete-offsets": "broker groups delete-offsets billing --topic orders",
    "cluster describe": "broker cluster describe -b kafka.example.com:9092",
    "cluster features": "broker cluster features",
    "cluster apis": "broker cluster apis --broker 1",
    "cluster machines": "broker cluster machines --admin-url http://localhost:8080",
    "cluster drain": "broker cluster drain machine-1 --timeout 60",
    "cluster balance": "broker cluster balance",
    "cluster resize": "broker cluster resize 6 --data-dir work --catalogue postgresql://broker@db/broker --objects s3://bucket/broker",
    "configs list": "broker configs list",
    "configs get": "broker configs get --topic orders retention.ms cleanup.policy",
    "configs set": "broker configs set --topic orders retention.ms=3600000",
    "configs delete": "broker configs delete --broker 1 log.retention.ms",
    "transactions list": "broker transactions list --state Ongoing",
    "transactions describe": "broker transactions describe orders-writer",
    "transactions abort": "broker transactions abort orders-writer",
    "produce": "broker produce orders --key-separator : lines.txt",
    "consume": "broker consume orders --from-beginning --format '%k %v'",
    "shuffle write": "broker shuffle write localhost:9310 job-1 part-0.bin part-1.bin --type blocking",
    "shuffle read": "broker shuffle read localhost:9310 job-1 0-1 --out parts",
    "shuffle list": "broker shuffle list localhost:9310",
    "shuffle release": "broker shuffle release localhost:9310 job-1",
    "shuffle id": "broker shuffle id job-1",
    "subscriptions list": "broker subscriptions list --admin-url http://localhost:8080",
    "subscriptions describe": "broker subscriptions describe orders billing",
    "subscriptions skip": "broker subscriptions skip orders billing --messages 10",
    "subscriptions reset": "broker subscriptions reset orders billing --to -10m",
    "faults add": "broker faults add error --api PRODUCE --topic orders --error NOT_LEADER_OR_FOLLOWER --count 2",
    "faults list": "broker faults list",
    "faults show": "broker faults show 1 --wait 2 --timeout 60",
    "faults remove": "broker faults remove --all",
    "faults trigger": "broker faults trigger partitions_added --topic orders --partitions 2",
    "top": "broker top --interval 1 --admin-url http://localhost:8080",
    "bench": "broker bench produce end-to-end --record-size 1k --compression lz4 --acks all",
    "inspect": "broker inspect --batches broker-data/orders-0",
    "backup": "broker backup backups/monday",
    "restore": "broker restore backups/monday restored",
    "migrate": "broker migrate --data-dir broker-data --catalogue postgresql://broker@db/broker --objects s3://bucket/broker",
    "users add": "broker users add alice --password-file alice.txt",
    "users list": "broker users list",
    "users delete": "broker users delete alice",
    "acls list": "broker acls list --topic orders",
    "acls add": "broker acls add --allow-principal User:alice --operation Read --topic orders",
    "acls remove": "broker acls remove --allow-principal User:alice --operation Read --topic orders",
    "quotas list": "broker quotas list --user alice",
    "quotas set": "broker quotas set --user alice producer_byte_rate=10m",
    "quotas remove": "broker quotas remove --user alice producer_byte_rate",
    "certs": "broker certs --host broker.example.com --client alice certs",
    "completion": "broker completion bash",
    "help": "broker help groups reset-offsets",
    "health": "broker health localhost:9092",
}


@click.command()
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, for example `broker help topics create`."""
    root = ctx.find_root()
    shown, parent = root.command, root
    for name in names:
        inner = shown.get_command(parent, name) if isinstance(shown, click.Group) else None
        if inner is None:
            raise click.UsageError(f"There is no command {' '.join(names)!r}; `broker help` lists them.")
        # The context of a command whose help is shown.
        parent = click.Context(inner, parent=parent, info_name=name)
        shown = inner
    click.echo(shown.get_help(parent))
    example = EXAMPLES.get(" ".join(names))
    if example is not None:
        click.echo(f"\nExample:\n  {example}")
