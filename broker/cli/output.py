"""Output of the commands: tables (formatted on a terminal, tab-separated otherwise), and records as JSON.

Tests: tests/cli/test_topics.py, tests/cli/test_inspect.py.
"""

import json
import sys
from collections.abc import Mapping, Sequence

import click


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Numbers are aligned right. If the output is not a terminal: no title, no header, one row per line."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(str(cell) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[str(cell) for cell in row])
    Console().print(table)


def json_line(fields: Mapping[str, object]) -> bytes:
    # Kafka's header names may be any bytes. Bytes that are not UTF-8 were decoded to surrogates, which cannot be encoded.
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def json_text(data: bytes | None) -> str | None:
    r"""Bytes for a JSON line. Bytes that are not UTF-8 become \xNN."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
