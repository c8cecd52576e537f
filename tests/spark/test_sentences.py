"""Our errors as a user of Spark sees them: the sentence first, and no traceback of our code."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.client import Broker
from broker.errors import BrokerError, ConfigError
from broker.spark.sentences import sentence_only, sentences_only
from tests.spark.topics import Topics

HIDDEN = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    # Set first, so that it is unset again in the end.
    monkeypatch.setenv(HIDDEN, "")


class Reader:
    def plan(self) -> None:
        raise ConfigError("Say what to change.")

    def read(self) -> Iterator[int]:
        yield 1
        raise BrokerError("No broker.")

    def broken(self) -> None:
        raise KeyError("ours")


@pytest.mark.usefixtures("in_a_worker")
@pytest.mark.parametrize(
    ("call", "hidden"),
    [
        (lambda reader: reader.plan(), "1"),
        (lambda reader: list(reader.read()), "1"),
        (lambda reader: reader.broken(), ""),
    ],
)
def test_traceback_of_our_bug_stays(call: Callable[[Any], object], hidden: str) -> None:
    import os

    with pytest.raises((BrokerError, KeyError)):
        call(sentences_only(type("Copy", (), dict(vars(Reader))))())
    assert hidden == os.environ[HIDDEN]


def test_driver_is_not_affected(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv(HIDDEN, raising=False)
    with pytest.raises(ConfigError):
        sentence_only(Reader().plan)()
    assert HIDDEN not in os.environ


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(Exception) as failure:
        action()
    return str(failure.value)


def test_failing_stream_task_gives_its_reason_first(
    stream: Callable[..., Any], topics: Topics, session_broker: Broker, tmp_path: Path
) -> None:
    """The README's stream, with a column of partitions that the target lacks."""
    source = topics.fill(3, 1)
    writer = stream(subscribe=source, startingOffsets="earliest").writeStream.format("broker")
    writer.option("kafka.bootstrap.servers", session_broker.bootstrap_servers).option("topic", f"{source}-copy")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    text = refusal(query.awaitTermination)
    sentence = "leave out the column partition"
    assert sentence in text
    assert "Traceback" not in text[: text.index(sentence)]
    assert "File " not in text[: text.index(sentence)]


def test_unplannable_read_gives_its_reason_first(read: Callable[..., Any]) -> None:
    text = refusal(lambda: read(subscribe="there-is-no-such-topic").collect())
    assert "there-is-no-such-topic" in text
    assert "Traceback" not in text
