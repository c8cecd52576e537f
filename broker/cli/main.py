"""`broker`: finds the command, runs it, and turns an error into one sentence and an exit status.

The status is 0 for success, 1 for a failure, 2 for wrong usage or settings, and 130 after an interrupt. A command is
the module of the same name, which is imported only when the command is called: `serve` starts without the Kafka client,
`consume` without the broker.

Tests: tests/cli/test_serve.py.
"""

import errno
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from broker.cli.output import say
from broker.errors import BrokerError, ConfigError

COMMANDS = {
    "serve": "Run a broker.",
    "topics": "Create, alter, list, describe and delete topics.",
    "groups": "List, describe, reset and delete groups of consumers.",
    "cluster": "Show the brokers of a cluster, their listeners, features and APIs.",
    "configs": "Get, set and delete settings of topics, brokers and groups.",
    "transactions": "List, describe and abort transactions.",
    "produce": "Send the lines of a file or of standard input to a topic.",
    "consume": "Print the records of topics, one per line.",
    "shuffle": "Write, read, list and release result partitions.",
    "subscriptions": "List, describe, skip and reset Pulsar's subscriptions.",
    "faults": "Have requests of clients fail on demand, for tests.",
    "top": "Watch topics by rate and groups by lag.",
    "bench": "Measure how fast a broker takes and gives records.",
    "inspect": "Show, verify and repair segment files, without a broker.",
    "backup": "Copy the data of a running broker, or check such a copy.",
    "restore": "Make a data directory of a backup.",
    "migrate": "Move a broker into PostgreSQL and an object store, or back.",
    "users": "Add, list and delete users that log in with SCRAM.",
    "acls": "List, add and remove ACLs: who may do what.",
    "quotas": "List, set and remove the quotas of clients.",
    "certs": "Make a certificate authority and certificates for development.",
    "completion": "Print the script that completes these commands in bash, zsh or fish.",
    "help": "Show the help of a command.",
    "health": "Check whether a broker answers.",
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
        # click's own method would import every command to get its help.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        # Not click's own method, which would import every command for its help.
        items = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            nearest = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the commands are {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"reactor-broker {version('reactor-broker')}")
        ctx.exit()


_EPILOG = """Exit status: 0 for success, 1 for a failure, 2 for wrong usage or settings, 3 if `shuffle read` finds that the
producer has failed, 130 after Ctrl-C. `broker completion` makes a shell complete these commands."""


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def command() -> None:
    """A Kafka-style broker, and commands to use and inspect it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Never returns: exits with the status."""
    if instruction := os.environ.get(_COMPLETE):
        sys.exit(_complete(instruction))
    _open_closed_streams()
    try:
        # Not command.main(), which handles Ctrl-C and a closed output pipe differently.
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
        _print_error(error)
        sys.exit(2)
    except BrokerError as error:
        _print_error(error)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has closed it, as in `broker consume orders | head`, which is no error. The flush at
        # exit would fail again, so the output goes to /dev/null.
        _discard_output()
        sys.exit(0)
    except (KeyboardInterrupt, click.Abort):
        _discard_output()
        sys.exit(130)
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        _discard_output()
        _print_error(BrokerError(f"The output cannot be written: {error.strerror}"))
        sys.exit(1)


# Errors of a full or broken disk behind standard output. Commands report errors of other files themselves.
_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


# As in `completion.py`, which is not imported at every start.
_COMPLETE = "_BROKER_COMPLETE"


def _complete(instruction: str) -> int:
    """Answer a shell that completes a command line. Errors are not printed, because they would mix with the typed
    text."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(command, {}, "broker", _COMPLETE, instruction)
    except (BrokerError, click.ClickException, click.exceptions.Exit, KeyboardInterrupt):
        return 1


def _print_error(error: Exception) -> None:
    text = str(error).rstrip(".")
    say(f"broker: {text}{'' if text.endswith(('?', '!')) else '.'}", err=True)


def _open_closed_streams() -> None:
    """Replace None, the value of a stream that was closed before the start, as by `>&-`, so that no file gets its
    descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # until the end


def _discard_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
