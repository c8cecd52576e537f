"""The commands of Pulsar's protocol, a module for each subject. ``load`` collects every ``Command`` that these modules define,
singly or in a tuple.

Tests: tests/pulsar/test_service.py.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from broker.pulsar.command import Command


def load() -> dict[int, Command]:
    """All commands of this package by type."""
    commands: dict[int, Command] = {}
    for _, command in by_module():
        assert command.type not in commands, f"two modules answer {command.name}"
        commands[int(command.type)] = command
    return dict(sorted(commands.items()))


def by_module() -> Iterator[tuple[str, Command]]:
    """All commands, each with the name of its module in this package."""
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            for command in value if isinstance(value, tuple) else (value,):
                if isinstance(command, Command):
                    yield info.name, command
