"""Tables: for programs where the output is no terminal, for people where it is one or where FORCE_COLOR says so."""

import json
import subprocess
import sys

import pytest

from broker.cli.output import print_done, print_rows, say
from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from protocol.kafka.api_keys import ApiKey
from tests.cli.conftest import Run
from tests.faults.raw import Raw

_PROGRAM = """
from broker.cli.output import print_rows
print_rows(["topic", "end offset"], [("a[b]", 1), ("c", None)], {as_json})
"""


def printed(environment: dict[str, str], as_json: bool = False) -> str:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(as_json=as_json)], capture_output=True, env=environment, check=True
    )
    return result.stdout.decode()


def test_rows_without_a_terminal_have_tabs() -> None:
    assert "a[b]\t1\nc\t-\n" == printed({})


def test_json_has_the_columns_names() -> None:
    assert '{"topic": "a[b]", "end_offset": 1}\n{"topic": "c", "end_offset": null}\n' == printed({}, as_json=True)


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_force_color_formats_and_no_color_removes_colours(more: dict[str, str], coloured: bool) -> None:
    text = printed({"FORCE_COLOR": "1", "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more})
    assert "end offset" in text
    assert "a[b]" in text
    assert coloured == ("\x1b[" in text)


HOSTILE = "a\x1b]0;title\x07\x9b2J\nrow\t1\r\u202e\u2028[bold]\udc80\x7f"


def is_visible(text: str) -> bool:
    return all(line.isprintable() for line in text.removesuffix("\n").split("\n"))


def test_terminal_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["name", "number"], [(HOSTILE, 1), (HOSTILE, 2)], False)
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert is_visible(out.replace("\t", " "))
    assert out.count("\t") == 2
    say(f"{HOSTILE}: done")
    print_done("deleted", "topic", HOSTILE, False)
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert is_visible(out)


def test_json_has_escapes_and_stays_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["name"], [(HOSTILE,), ("żółć 😀",)], True)
    first, second = capsys.readouterr().out.splitlines()
    assert is_visible(first)
    assert json.loads(first) == {"name": HOSTILE}
    assert second == '{"name": "żółć 😀"}'


@pytest.mark.parametrize("formatted", [True, False])
def test_client_chosen_names_cannot_forge_output(
    session_broker: Broker, run: Run, environment: dict[str, str], formatted: bool
) -> None:
    """Groups and transactional ids may have any name."""
    hostile = HOSTILE.replace("\udc80", "")
    if formatted:
        environment |= {"FORCE_COLOR": "1", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    config = ClientConfig.from_properties({"bootstrap.servers": session_broker.bootstrap_servers})
    run("topics", "create", "hostile", "--if-not-exists")
    with Cluster(config) as cluster:
        cluster.commit(hostile, {("hostile", 0): 0})
    with Raw(session_broker) as raw:
        raw.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=hostile, transaction_timeout=60_000)
    seen = 0
    for arguments in (
        ["groups", "list"],
        ["groups", "describe", hostile],
        ["transactions", "list"],
        ["transactions", "describe", hostile],
        ["groups", "describe", "missing" + hostile],
        ["topics", "describe", "missing" + hostile],
    ):
        for more in ([], ["--output", "json"]):
            result = run(*arguments, *more, fails=None)
            text = (result.stdout + result.stderr).decode()
            assert is_visible(text.replace("\t", " ")), (arguments, text)
            seen += "title" in text
    assert seen >= 10
