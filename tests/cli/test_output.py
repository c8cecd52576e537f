"""Tables: for programs where the output is no terminal, for people where it is one or where FORCE_COLOR says so."""

import subprocess
import sys

import pytest

_PROGRAM = """
from broker.cli.output import print_rows
print_rows(["topic", "end offset"], [("a[b]", 1), ("c", None)], {as_json})
"""


def printed(environment: dict[str, str], as_json: bool = False) -> str:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(as_json=as_json)], capture_output=True, env=environment, check=True
    )
    return result.stdout.decode()


def test_without_a_terminal_rows_are_lines_with_tabs() -> None:
    assert "a[b]\t1\nc\t-\n" == printed({})


def test_json_has_the_columns_names() -> None:
    assert '{"topic": "a[b]", "end_offset": 1}\n{"topic": "c", "end_offset": null}\n' == printed({}, as_json=True)


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_force_color_formats_and_no_color_takes_the_colours_away(more: dict[str, str], coloured: bool) -> None:
    text = printed({"FORCE_COLOR": "1", "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more})
    assert "end offset" in text
    assert "a[b]" in text
    assert coloured == ("\x1b[" in text)
