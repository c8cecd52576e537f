"""`broker help`: the help of a command, for those who look for it there.

Tests: tests/cli/test_completion.py.
"""

import click

from broker.cli.examples import EXAMPLES


@click.command()
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, for example `broker help topics create`."""
    root = ctx.find_root()
    found, parent = root.command, root
    for name in names:
        inner = found.get_command(parent, name) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.UsageError(f"There is no command {' '.join(names)!r}; `broker help` lists them.")
        # One that is only asked for its help.
        parent = click.Context(inner, parent=parent, info_name=name)
        found = inner
    click.echo(found.get_help(parent))
    example = EXAMPLES.get(" ".join(names))
    if example is not None:
        click.echo(f"\nExample:\n  {example}")
