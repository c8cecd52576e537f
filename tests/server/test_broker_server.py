"""The assembly: what is taken before what, and let go of after what."""

import gc
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from broker.config import load
from broker.errors import ConfigError, StorageError
from broker.metadata.sqlite import SqliteCatalogue
from broker.metrics.registry import render
from broker.part import PartThread, Surroundings
from broker.runtime import system_runtime
from broker.runtime.dial import ask
from broker.runtime.threads import Event, ThreadHandle
from broker.server import BrokerServer, services
from broker.storage.data_directory import LOCK
from broker.storage.upkeep.closing import Closing
from broker.storage.upkeep.flusher import FLUSHER_THREADS
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.storage.helpers import FaultyDisk, append
from tests.waiting import wait_for


def server(
    data_dir: Path,
    open_catalogue: type[SqliteCatalogue] = SqliteCatalogue,
    listeners: Sequence[str] = ("kafka://127.0.0.1:0",),
) -> BrokerServer:
    config = load(data_dir=str(data_dir), listeners=list(listeners))
    return BrokerServer(config, open_catalogue=open_catalogue)


class Untouchable(SqliteCatalogue):
    def __init__(self, path: str) -> None:
        raise AssertionError(f"{path} was opened")


def test_catalogue_is_untouched_while_another_broker_runs(tmp_path: Path) -> None:
    first = server(tmp_path)
    first.start()
    try:
        with pytest.raises(ConfigError, match="Another broker"):
            server(tmp_path, Untouchable).start()
    finally:
        first.stop()


def test_foreign_directory_is_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.odt").touch()
    with pytest.raises(ConfigError, match="not empty"):
        server(tmp_path, Untouchable).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.odt"]


def test_the_directory_is_let_go_of_last(tmp_path: Path) -> None:
    locked: list[bool] = []

    class Watched(SqliteCatalogue):
        def close(self) -> None:
            with pytest.raises(BlockingIOError):
                broker.runtime.disk.lock(f"{tmp_path}/{LOCK}")
            locked.append(True)
            super().close()

    broker = server(tmp_path, Watched)
    broker.start()
    broker.stop()
    assert locked == [True]
    broker.runtime.disk.lock(f"{tmp_path}/{LOCK}").close()


def test_stop_does_not_wait_for_thousands_of_creations(tmp_path: Path) -> None:
    broker = server(tmp_path)
    broker.start()
    errors: list[StorageError] = []

    def make() -> None:
        with pytest.raises(StorageError) as error:
            broker.kafka.logs.create_topic("many", 10_000)
        errors.append(error.value)

    maker = threading.Thread(target=make)
    maker.start()
    wait_for((tmp_path / "many-20").exists)
    broker.stop()
    maker.join(60)
    assert "the broker is stopping" in str(errors[0])
    broker = server(tmp_path)
    broker.start()
    assert broker.kafka.logs.topic("many") is None
    assert not list(tmp_path.glob("many-*"))
    broker.stop()


def test_stopped_flushers_begin_no_fsync(tmp_path: Path) -> None:
    broker = server(tmp_path)
    broker.start()
    asked: list[str] = []
    waited: dict[str, int] = {}

    class Watched:
        def __init__(self, handle: ThreadHandle) -> None:
            self.name = handle.name
            self._handle = handle

        def ask_to_stop(self) -> None:
            asked.append(self.name)
            self._handle.ask_to_stop()

        def stop(self, timeout: float | None = None) -> bool:
            waited[self.name] = len(asked)
            return self._handle.stop(timeout)

        def alive(self) -> bool:
            return self._handle.alive()

    broker._taken.threads = [Watched(handle) for handle in broker._taken.threads]
    broker.stop()
    assert sorted(asked) == FLUSHERS
    assert [waited[name] for name in KAFKA_THREADS] == [FLUSHER_THREADS] * FLUSHER_THREADS + [0] * 5


@pytest.mark.parametrize("closing_begins_s", [0.0, 0.4], ids=["in time", "late"])
def test_hanging_disk_keeps_the_directory_locked(
    closing_begins_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_next = Closing.next

    def late(closing: Closing) -> bool:
        """The threads that close logs begin when the time is over, and do nothing."""
        time.sleep(closing_begins_s)
        return take_next(closing)

    monkeypatch.setattr(Closing, "next", late)
    disk, hangs, answers = FaultyDisk(), threading.Event(), threading.Event()
    others = set(threading.enumerate())

    def hang(what: str, path: str) -> None:
        if what == "sync" and path.endswith(".log"):
            hangs.set()
            answers.wait(60)

    config = load(data_dir=str(tmp_path), listeners=["kafka://127.0.0.1:0"])
    broker = BrokerServer(config, attrs.evolve(system_runtime(), disk=disk))
    broker.start()
    logs = broker.kafka.logs
    logs.create_topic("t", 1)
    disk.before = hang
    try:
        flusher = logs.flusher
        end = append(logs.partitions["t", 0], b"x").last_offset + 1
        flusher.wait_durable(logs.partitions["t", 0], end, lambda error: None)
        assert hangs.wait(30)
        broker.stop(timeout=1)
        assert broker.left_behind
        del broker, logs, flusher
        gc.collect()
        with pytest.raises(ConfigError, match="Another broker"):
            server(tmp_path).start()
    finally:
        answers.set()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith(("flusher-", "closing-")):
            thread.join(60)
    gc.collect()
    broker = server(tmp_path)
    broker.start()
    assert broker.kafka.logs.partitions["t", 0].log_end_offset == 1
    broker.stop()


def test_a_start_that_fails_lets_the_directory_go(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_text("this is no database, and long enough to be seen as such" * 100)
    for _ in range(2):
        with pytest.raises(ConfigError, match="catalogue"):
            server(tmp_path).start()


FLUSHERS = [f"flusher-{number}" for number in range(FLUSHER_THREADS)]
KAFKA_THREADS = [*FLUSHERS, "catalogue-writer", "marker-writer", "housekeeper", "group-worker", "topic-maker"]


@pytest.mark.parametrize(
    ("listeners", "threads"),
    [
        (["kafka://127.0.0.1:0"], KAFKA_THREADS),
        (["shuffle://127.0.0.1:0"], [*KAFKA_THREADS, "spiller"]),
        (["shuffle://127.0.0.1:0", "kafka://127.0.0.1:0"], [*KAFKA_THREADS, "spiller"]),
    ],
)
def test_threads_that_others_wait_for_are_started_first(
    tmp_path: Path, listeners: list[str], threads: list[str]
) -> None:
    broker = server(tmp_path, listeners=listeners)
    broker.start()
    try:
        assert [thread.name for thread in broker._taken.threads] == threads
        assert (broker.part("shuffle") is not None) == ("spiller" in threads)
        assert set(broker.listeners) == {listener.split(":")[0] for listener in listeners}
    finally:
        broker.stop()


def test_unknown_scheme_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serves kafka://, .* listeners only"):
        server(tmp_path, Untouchable, ["gopher://127.0.0.1:0"]).start()
    assert list(tmp_path.iterdir()) == []


class Noted:
    """A service that only notes what the server does with it."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def threads(self) -> list[PartThread]:
        self.calls.append("threads")
        return [PartThread("noted", self), PartThread("noted-first", self, waited_for=True)]

    def step(self, timeout: float | None) -> bool:
        Event().wait(0.01)
        return False

    def wakeup(self) -> None:
        pass

    def service(self, listener: Any) -> Any:
        self.calls.append(f"service {listener.name}")
        return self

    def stopping(self) -> None:
        self.calls.append("stopping")

    def shut_down(self) -> None:
        self.calls.append("shut_down")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The services that servers have put together for their noted:// listeners."""
    parts: list[Noted] = []

    def assemble(surroundings: Surroundings, logs: Any) -> Noted:
        parts.append(Noted(surroundings))
        return parts[-1]

    assembly = ModuleType("noted_assembly")
    vars(assembly)["assemble"] = assemble
    monkeypatch.setitem(sys.modules, "noted_assembly", assembly)
    monkeypatch.setitem(services.SERVICES, "noted", services.Source("noted_assembly", always=True, open_files=10))
    return parts


def test_table_entry_runs_a_service_s_life(tmp_path: Path, noted: list[Noted]) -> None:
    broker = server(tmp_path, listeners=["kafka://127.0.0.1:0", "noted://127.0.0.1:0", "noted://127.0.0.1:0?name=more"])
    broker.start()
    (part,) = noted
    assert broker.part("noted") is part
    names = [thread.name for thread in broker._taken.threads]
    assert names.index("noted-first") < names.index("housekeeper") < names.index("noted")
    assert part.surroundings.open_files == 10
    assert set(part.surroundings.addresses) == {"kafka", "noted", "more"}
    broker.stop()
    assert part.calls == ["open", "threads", "service noted", "service more", "stopping", "shut_down", "close"]


def test_a_service_that_does_not_open_is_closed(
    tmp_path: Path, noted: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noted, "open", lambda part: part.calls.append("open") or 1 / 0)
    broker = server(tmp_path, listeners=["noted://127.0.0.1:0"])
    with pytest.raises(ZeroDivisionError):
        broker.start()
    assert noted[0].calls == ["open", "close"]
    broker.runtime.disk.lock(f"{tmp_path}/{LOCK}").close()


def test_processor_counters_are_in_the_registry(tmp_path: Path) -> None:
    running = BrokerServer(load(data_dir=str(tmp_path), listeners=["kafka://127.0.0.1:0"], network_threads=1))
    running.start()
    try:
        host, port = running.listeners["kafka"].rsplit(":", 1)
        answer = ask(host, int(port), control.encode_request(ApiKey.API_VERSIONS, 0, 7, "test", {}), 30)
        sent = f'broker_network_sent_bytes_total{{processor="processor-0"}} {float(4 + len(answer))}'
        # The answer arrives before the processor has counted it.
        wait_for(lambda: sent in render(running.metrics).decode().splitlines())
        lines = render(running.metrics).decode().splitlines()
        assert 'broker_network_requests_total{processor="processor-0"} 1.0' in lines
    finally:
        running.stop()


def test_shuffle_listener_is_refused_logins_with_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"as shuffle\+ssl://: its protocol has no SASL"):
        BrokerServer(load(data_dir=str(tmp_path), listeners=["shuffle+sasl://127.0.0.1:0"])).start()


def test_open_listener_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allow_anonymous_listeners"):
        server(tmp_path, Untouchable, ["kafka://0.0.0.0:0"]).start()
    assert list(tmp_path.iterdir()) == []


def test_open_listener_is_named_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(data_dir=str(tmp_path), listeners=["kafka://0.0.0.0:0"], allow_anonymous_listeners=True)
    broker = BrokerServer(config)
    broker.start()
    broker.stop()
    error = capsys.readouterr().err
    assert "listener_unauthenticated" in error
    assert "kafka://0.0.0.0:0" in error
