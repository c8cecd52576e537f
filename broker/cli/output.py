"""Tables: framed for people at a terminal, tab-separated for whatever else reads standard output."""

import sys
from collections.abc import Sequence

import click


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Numbers stand right. Where there is no terminal: no title, no header, one row a line."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(str(cell) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*[""] * 0, title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[str(cell) for cell in row])
    Console().print(table)
