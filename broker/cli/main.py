"""`broker`: finds the command, runs it, and turns what went wrong into one sentence and an exit status.

0 fine, 1 it did not work, 2 wrong usage or settings, 130 interrupted. A command lives in the module of its name and is
imported only when it is called: `serve` starts without the Kafka client, `consume` without the broker.
"""

import importlib
import os
import sys
from typing import NoReturn

import click

from broker.errors import BrokerError, ConfigError

COMMANDS = {
    "serve": "Run a broker.",
    "topics": "Create, list, describe and delete topics.",
    "transactions": "List, describe and abort transactions.",
    "produce": "Send lines of standard input to a topic.",
    "consume": "Print the records of topics, one a line.",
    "shuffle": "Write, read, list and release result partitions.",
    "inspect": "Show and verify segment files, without a broker.",
    "health": "Ask a broker whether it answers.",
}


class _Commands(click.Group):
    """Commands by name, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"broker.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every command to ask for its help.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            nearest = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the commands are {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"reactor-broker {version('reactor-broker')}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def command() -> None:
    """A Kafka-style broker, and what one needs to look into it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Never returns: exits with the status."""
    try:
        # Not command.main(), which has ways of its own with Ctrl-C and with output that nobody reads any more.
        with command.make_context("broker", sys.argv[1:] if arguments is None else arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
        sys.exit(0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        _say(error)
        sys.exit(2)
    except BrokerError as error:
        _say(error)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has had enough, as in `broker consume orders | head`. Nothing to report; and nothing may
        # be flushed at exit, which would only fail again.
        _forget_output()
        sys.exit(0)
    except (KeyboardInterrupt, click.Abort):
        _forget_output()
        sys.exit(130)


def _say(error: Exception) -> None:
    click.echo(f"broker: {str(error).rstrip('.')}.", err=True)


def _forget_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
