"""`broker consume --share-group`: what is printed is accepted, and nothing else."""

import pytest

from tests.cli.conftest import Run


def lines(output: bytes) -> list[str]:
    return output.decode().splitlines()


def test_printed_records_are_not_printed_again(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"one\ntwo\nthree\n")
    group = f"workers-{topic}"
    assert ["one", "two"] == lines(run("consume", topic, "-G", group, "--from-beginning", "-n", "2").stdout)
    assert ["three"] == lines(run("consume", topic, "-G", group).stdout)
    assert [] == lines(run("consume", topic, "-G", group).stdout)


def test_a_new_group_begins_at_the_end(run: Run, topic: str) -> None:
    run("produce", topic, stdin=b"before\n")
    group = f"workers-{topic}"
    assert [] == lines(run("consume", topic, "-G", group).stdout)
    run("produce", topic, "-K", ":", stdin=b"key:after\n")
    assert ["key=after"] == lines(run("consume", topic, "-G", group, "-K", "=").stdout)


@pytest.mark.parametrize("other", [("--group", "g"), ("--partition", "0"), ("--offset", "1"), ("--from-time", "-1m")])
def test_incompatible_options_are_refused(run: Run, topic: str, other: tuple[str, str]) -> None:
    result = run("consume", topic, "--share-group", "workers", *other, fails=2)
    assert "With --share-group, the group determines partitions and offsets" in result.stderr.decode()
