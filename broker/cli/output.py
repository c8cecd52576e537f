"""Output of the commands: tables (formatted on a terminal, tab-separated otherwise), and objects as JSON.

On a terminal tables have a header and colours. ``NO_COLOR`` and TERM=dumb switch colours off; ``FORCE_COLOR`` formats
and colours tables without a terminal, as in the log of a CI system that shows colours.

Clients choose names. `visible` escapes characters that would control a terminal or end a row; only ``broker consume``
writes the bytes of records unchanged.

`Interrupts` handles Ctrl-C in a command that has to finish something first: the first Ctrl-C is a request, the second
an exception.

Tests: tests/cli/test_topics.py,
tests/cli/test_inspect.py,
tests/cli/test_produce_consume.py.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal

import click


def output_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --output; the command gets ``as_json``."""
    return click.option(
        "--output",
        "as_json",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        callback=lambda _ctx, _parameter, value: value == "json",
        help="json: an object per line.",
    )(function)


def visible(text: str) -> str:
    r"""Escape characters that do not print (control characters, line ends, changes of the writing direction) as in
    Python: ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def say(line: str = "", *, err: bool = False) -> None:
    """Print one line, which may contain names."""
    click.echo(visible(line), err=err)


def is_formatted() -> bool:
    """Whether tables are formatted for people."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Numbers are aligned right. If the output is not for people: no title, no header, one row per line."""
    if not is_formatted():
        for row in rows:
            click.echo("\t".join(_cell(cell) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        # As Text, because brackets in a name would be markup to rich.
        table.add_row(*[Text(_cell(cell)) for cell in row])
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    Console(width=None if sys.stdout.isatty() else _WIDTH, color_system=colours).print(table)


# The width without a terminal: lines are as long as they need to be.
_WIDTH = 400


def _cell(cell: object) -> str:
    return "-" if cell is None else visible(str(cell))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], as_json: bool, title: str = "") -> None:
    """Print rows as a table, or as an object per line. The names are those of the columns with ``_`` for blanks; None
    is ``-`` or ``null``.
    """
    if not as_json:
        print_table(columns, list(rows), title)
        return
    names = [column.replace(" ", "_") for column in columns]
    for row in rows:
        print_object(dict(zip(names, row, strict=True)))


def print_object(fields: Mapping[str, object]) -> None:
    click.echo(json_line(fields), nl=False)


def print_done(done: str, kind: str, name: str, as_json: bool) -> None:
    """Print a line about a changed thing: `deleted orders`, or an object."""
    if as_json:
        print_object({kind: name, "done": done})
    else:
        say(f"{done} {name}")


def json_line(fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, ensure_ascii=False)
    if not text.isprintable():  # JSON's own escapes cover ASCII only
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return text.encode() + b"\n"


def json_text(data: bytes | None) -> str | None:
    r"""Bytes for a JSON line. Bytes that are not UTF-8 become \xNN."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


class Interrupts:
    """``with Interrupts() as interrupts``; then ``interrupts.requested`` tells whether Ctrl-C was pressed.

    A step that may wait for a long time goes into ``with interrupts.allowed()``, in which the first Ctrl-C raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.requested = False
        self._allowed = False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        self._allowed = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or self._allowed:
            raise KeyboardInterrupt
