"""What Produce and Fetch requests cost the broker beside the least that a Python program needs for them.

Broker and bare loop (``bare.py``) stay up and are measured in turns. ``produce``: one connection, five requests in flight,
acks=1, and the smallest also with acks=all, for which there is no loop. ``fetch``: 16 MB and 1 MB a response, from the page
cache, and one record a response with 1 and 16 requests in flight. ``tail``: consumers that wait at the end of a partition; one
record is appended, all of them are answered and ask again. Its figure is the CPU of an append and all answers, an answer.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.bench.frame import Figures, Meter, Options, Row, compared
from tests.bench.process import BrokerProcess, Helper
from tests.bench.wire import Wire, batch, fetch_all, fetch_frame, produce, produce_frame

_DEPTH = 5
_WAIT_MS = 30_000
_topics = (f"bench-{number}" for number in itertools.count())

Server = BrokerProcess | Helper


@contextmanager
def _servers(options: Options, kind: str) -> Iterator[dict[str, Server]]:
    """The bare loop and the broker."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory))
        loop = stack.enter_context(Helper("bare", kind, directory))
        yield {"loop": loop, "broker": stack.enter_context(BrokerProcess(directory=options.directory))}


def _connected(server: Server) -> tuple[Wire, str]:
    """And a new topic."""
    wire, topic = Wire(server.address), next(_topics)
    if isinstance(server, BrokerProcess):
        wire.create_topic(topic)
    return wire, topic


def _filled(server: Server, records: int, size: int, count: int) -> tuple[Wire, str]:
    wire, topic = _connected(server)
    produce(wire, produce_frame(topic, batch(records, size)), topic, count, _DEPTH)
    return wire, topic


def bench_produce(options: Options) -> Iterator[Row]:
    def once(server: Server, records: int, size: int, count: int, acks: int) -> Figures:
        wire, topic = _connected(server)
        frame = produce_frame(topic, batch(records, size), acks)
        produce(wire, frame, topic, _DEPTH, _DEPTH)
        with Meter(server) as meter:
            offsets = produce(wire, frame, topic, count, _DEPTH)
        wire.close()
        assert offsets == [records * (number + _DEPTH) for number in range(count)], "offsets are not dense"
        return meter.figures(count, records * size)

    cases = (
        ("1 x 100 B", 1, 100, 60_000, 1),
        ("16 KB", 1, 16_384, 15_000, 1),
        ("1 MB", 1000, 1000, 300, 1),
        ("1 x 100 B, acks=all", 1, 100, 5_000, -1),
    )
    with _servers(options, "produce") as servers:
        for name, records, size, usual, acks in cases:
            case = records, size, options.count(usual, _DEPTH), acks
            chosen = servers if acks == 1 else {"broker": servers["broker"]}
            works = {who: partial(once, server, *case) for who, server in chosen.items()}
            if options.wants(name):
                yield from compared(options.rounds, works, f"produce {name}, ")


def bench_fetch(options: Options) -> Iterator[Row]:
    count = options.count(200, 5)
    cases: dict[str, tuple[int, int, int, Callable[[Server, Wire, str], Figures]]] = {}

    def large(most: int) -> Callable[[Server, Wire, str], Figures]:
        def work(server: Server, wire: Wire, topic: str) -> Figures:
            with Meter(server) as meter:
                size, requests = fetch_all(wire, topic, 0, count * 1000, most)
            figures = meter.figures(requests, size / requests)
            return figures | {"us CPU a record of 1 KB": meter.cpu_s / count * 1e3}

        return work

    def small(depth: int) -> Callable[[Server, Wire, str], Figures]:
        requests = options.count(10_000, 2 * depth)
        most = len(batch(1, 100)) + 10  # one batch

        def work(server: Server, wire: Wire, topic: str) -> Figures:
            frames = [fetch_frame(topic, offset, most) for offset in range(requests)]
            with Meter(server) as meter:
                for start in range(0, requests, depth):
                    wire.send(b"".join(frames[start : start + depth]))
                    for _ in frames[start : start + depth]:
                        wire.receive()
            return meter.figures(requests)

        return work

    cases = {
        "16 MB a response": (1000, 1000, count, large(16 << 20)),
        "1 MB a response": (1000, 1000, count, large(1 << 20)),
        "1 x 100 B": (1, 100, options.count(10_000, 32), small(1)),
        "1 x 100 B, 16 in flight": (1, 100, options.count(10_000, 32), small(16)),
    }
    with _servers(options, "fetch") as servers:
        for name, (records, size, batches, work) in cases.items():
            if options.wants(name):
                prepared = {who: (server, *_filled(server, records, size, batches)) for who, server in servers.items()}
                works = {who: partial(work, *given) for who, given in prepared.items()}
                for warm in works.values():
                    warm()
                yield from compared(options.rounds, works, f"fetch {name}, ")


def bench_tail(options: Options) -> Iterator[Row]:
    def once(server: Server, consumers: int) -> Figures:
        wire, topic = _filled(server, 1, 100, 10)
        turns = options.count(4_000 // (consumers + 3), 3)
        record = produce_frame(topic, batch(1, 100))
        waiting = [Wire(server.address) for _ in range(consumers)]
        end = 10
        for each in waiting:
            each.send(fetch_frame(topic, end, 1 << 20, _WAIT_MS))
        with Meter(server) as meter:
            for _ in range(turns):
                produce(wire, record, topic, 1, 1)
                end += 1
                again = fetch_frame(topic, end, 1 << 20, _WAIT_MS)
                for each in waiting:
                    each.receive()
                for each in waiting:
                    each.send(again)
        for each in waiting:
            each.close()
        return meter.figures(turns * consumers)

    with _servers(options, "fetch") as servers:
        for consumers in (1, 10, 100):
            works = {who: partial(once, server, consumers) for who, server in servers.items()}
            yield from compared(options.rounds, works, f"{consumers} consumers at the end, ")


SECTIONS = {"produce": bench_produce, "fetch": bench_fetch, "tail": bench_tail}
