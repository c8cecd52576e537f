"""What another part of the broker does on a processor's thread."""

import errno
import os
from collections.abc import Iterator

import pytest

from tests.network.echo import frame
from tests.network.harness import Bench


class Bell:
    """A pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def fileno(self) -> int:
        return self.reader

    def ring(self) -> None:
        os.write(self.writer, b"x")

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Attached:
    """Notes what is called, and on which thread."""

    def __init__(self, bench: list[Bench]) -> None:
        self.source = Bell()
        self.due: list[str] = []
        self.calls: list[tuple[str, int]] = []
        self._bench = bench

    def _note(self, what: str) -> None:
        self.calls.append((what, self._bench[0].roles.get_ident()))

    def attach(self) -> None:
        self._note("attach")

    def ready(self) -> None:
        os.read(self.source.reader, 1)
        self._note("ready")

    def begin_due(self) -> None:
        self._note("begin " + ",".join(self.due))
        self.due.clear()

    def detach(self) -> None:
        self._note("detach")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def made() -> Iterator[tuple[Bench, Attached]]:
    benches: list[Bench] = []
    attached = [Attached(benches)]
    free = attached.copy()
    benches.append(Bench(attach=lambda: free.pop() if free else None))
    yield benches[0], attached[0]
    benches[0].close()
    attached[0].source.close()


def test_it_lives_on_the_processors_thread(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    assert attached.calls == []
    bench.step(2)
    attached.source.ring()
    bench.step()
    attached.due.append("a")
    bench.step(2)
    assert attached.names == ["attach", "ready", "begin a"]
    assert {ident for _, ident in attached.calls} == {id(bench)}


def test_attachment_work_begins_once_all_requests_are_handled(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    clients = [bench.connect() for _ in range(3)]
    right = bench.service.inline

    def inline(request: object) -> object:
        attached.due.append("x")
        return right(request)

    bench.service.inline = inline
    for client in clients:
        client.send(frame(b"e", b"hello"))
    bench.until(lambda: all(client.frames for client in clients))
    bench.step()
    assert attached.names == ["attach", "begin x,x,x"]


def test_leaving_processor_detaches_attachment_on_own_thread(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    bench.step()
    bench.replace()
    assert attached.calls == [("attach", id(bench)), ("detach", id(bench))]
    attached.source.ring()
    bench.step()
    assert attached.names == ["attach", "detach"]


def test_attachment_submits_through_inbox_and_errors_cost_connection(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    unlucky, other = bench.connect(), bench.connect()
    connection = bench.connection_of(unlucky)
    done: list[str] = []

    def fail(target: object, argument: object) -> None:
        done.append("failed")
        raise RuntimeError("as it is")

    def begin_due() -> None:
        attached.due.clear()
        bench.processor.submit(fail, connection, None)
        done.append("began")

    attached.begin_due = begin_due  # type: ignore[method-assign]
    attached.due.append("x")
    bench.step(3)
    assert done == ["began", "failed"]
    other.send(frame(b"e", b"hello"))
    bench.until(lambda: other.frames)
    bench.until(lambda: unlucky.eof)


def test_refusing_poller_does_not_end_the_processor(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    right = bench.poller.register

    def register(source: object, events: int, data: object) -> None:
        if source is attached.source:
            raise OSError(errno.ENOSPC, "No space left on device")
        right(source, events, data)

    bench.poller.register = register  # type: ignore[method-assign, assignment]
    client = bench.connect()
    client.send(frame(b"e", b"hello"))
    bench.until(lambda: client.frames)
    assert attached.names == ["detach"]


def test_closing_detaches_it(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    bench.step()
    bench.processor.close()
    assert attached.names == ["attach", "detach"]


def test_attachment_is_detached_even_if_never_attached(made: tuple[Bench, Attached]) -> None:
    bench, attached = made
    bench.processor.close()
    assert attached.names == ["detach"]
