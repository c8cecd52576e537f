"""`broker completion`: prints the script that makes a shell complete the commands of `broker`.

The script calls `broker` itself with ``_BROKER_COMPLETE`` set, which `main.py` answers.

Names of topics, groups and transactional ids for the shell, from the broker that the command line names so far.

A shell waits for this at every press of the Tab key: the broker has a short time to answer, nobody is asked for a password, and
every error means no suggestions.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from broker.cli.broker_options import target_without_asking
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.kafka import Cluster


_ANSWER_MS = 1000
# More than anybody reads, and little enough for a shell to sort.
_NAMES_MAX = 500


def topics(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.configs import describe_topics

    def ask(cluster: "Cluster") -> Iterable[str]:
        return (topic.name for topic in describe_topics(cluster.routing).topics if not topic.is_internal)

    return _names(ctx, incomplete, ask)


def groups(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.groups import list_groups

    return _names(ctx, incomplete, lambda cluster: (one.group for one in list_groups(cluster.routing)))


def transactional_ids(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.cluster import list_ids

    return _names(ctx, incomplete, lambda cluster: (one.transactional_id for one in list_ids(cluster.routing, ())))


def _names(ctx: click.Context, incomplete: str, ask: "Callable[[Cluster], Iterable[str]]") -> list[str]:
    """Those that begin with what was typed and were not given already."""
    from broker.client.kafka.cluster import Cluster

    given = {
        name for value in ctx.params.values() if isinstance(value, tuple) for name in value if isinstance(name, str)
    }
    try:
        target = target_without_asking(ctx.params)
        with Cluster(target.config("completion")) as cluster, cluster.routing.limit.within(_ANSWER_MS):
            names = [name for name in ask(cluster) if name.startswith(incomplete) and name not in given]
    except (BrokerError, click.ClickException, OSError, ValueError):
        return []
    return names[:_NAMES_MAX]


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
    # Not `source()`, which for bash also looks for the version of a bash that may not be the one in use.
    script = kind(ctx.find_root().command, {}, "broker", VARIABLE)
    click.echo(script.source_template % script.source_vars())
