"""One module for each command, or for a few that are answered alike. ``load`` finds them, so that a new file is all that a new
command takes.

Tests: tests/pulsar/test_service.py.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from broker.pulsar.command import Command


def load() -> dict[int, Command]:
    """Every command of this package by its type."""
    commands: dict[int, Command] = {}
    for _, command in by_module():
        assert command.type not in commands, f"two modules answer {command.name}"
        commands[int(command.type)] = command
    return dict(sorted(commands.items()))


def by_module() -> Iterator[tuple[str, Command]]:
    """Every command, with the name of its module in this package."""
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for command in getattr(module, "COMMANDS", None) or (module.COMMAND,):
            yield info.name, command
