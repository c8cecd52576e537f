"""`broker completion`: prints the script that makes a shell complete the commands of `broker`.

The script calls `broker` itself with ``_BROKER_COMPLETE`` set, which `main.py` answers.
"""

import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_BROKER_COMPLETE"

_INSTALL = """\b
bash: add this line to ~/.bashrc:   source <(broker completion bash)
zsh:  add this line to ~/.zshrc:    source <(broker completion zsh)
fish: broker completion fish > ~/.config/fish/completions/broker.fish

The names of topics, groups and transactional ids come from the broker at -b or BROKER_BOOTSTRAP_SERVERS, if it answers within
a second.
"""


@click.command(epilog=_INSTALL)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    # Not `source()`, which for bash also checks the version of a bash that may not be the one in use.
    script = kind(ctx.find_root().command, {}, "broker", VARIABLE)
    click.echo(script.source_template % script.source_vars())
