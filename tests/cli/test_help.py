"""Every command has an example, and every example is one that the command takes."""

import shlex
from collections.abc import Iterator

import click
import pytest

from broker.cli.help import EXAMPLES
from broker.cli.main import command as root


def commands(command: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, f"{path} {name}".strip())


def test_examples_and_commands_correspond() -> None:
    assert sorted(commands(root)) == sorted(EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_example_is_understood(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("files")
    for name in ("lines.txt", "alice.txt", "part-0.bin", "part-1.bin"):
        (directory / name).touch()
    (directory / "broker-data" / "orders-0").mkdir(parents=True)
    if path == "restore":
        (directory / "backups" / "monday").mkdir(parents=True)
    monkeypatch.chdir(directory)
    program, *words = shlex.split(EXAMPLES[path])
    assert "broker" == program
    assert path == " ".join(words[: len(path.split())])
    command: click.Command = root
    context = click.Context(root)
    for name in path.split():
        assert isinstance(command, click.Group)
        inner = command.get_command(context, name)
        assert inner is not None
        command, context = inner, click.Context(inner, parent=context)
    # Raises a usage error for what the command does not take.
    command.make_context(path, words[len(path.split()) :]).close()
