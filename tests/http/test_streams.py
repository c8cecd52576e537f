"""Server-sent events: what clients get, and what clients that do not read cost."""

import json
from typing import Any

import pytest

from broker.http import streams
from broker.http.streams import Stream
from tests.http.harness import HttpBench
from tests.network.harness import Client

HEAD = b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n"


def dechunked(data: bytes) -> tuple[bytes, bytes, bool]:
    """Head, body as far as it has come, and whether it has ended."""
    head, _, rest = data.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return head, body, True
        if len(rest) < int(size, 16):
            break
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return head, body, False


def events(client: Client) -> list[tuple[str, Any]]:
    _, body, _ = dechunked(bytes(client.received))
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def opened(bench: HttpBench, path: str = "/events", **options: Any) -> tuple[Client, Stream]:
    before = len(bench.opened)
    client = bench.connect(**options)
    client.send(HEAD.replace(b"/events", path.encode()))
    bench.until(lambda: len(bench.opened) > before)
    stream = bench.opened[-1]
    assert isinstance(stream, Stream)
    return client, stream


@pytest.mark.parametrize("path", ["/events", "/events/inline"])
def test_events_arrive_as_they_are_sent(bench: HttpBench, path: str) -> None:
    client, stream = opened(bench, path)
    assert stream.send("sample", '{"n":1}')
    bench.until(lambda: events(client))
    assert stream.send("sample", '{"n":2}')
    bench.until(lambda: len(events(client)) == 2)
    head, _, ended = dechunked(bytes(client.received))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-type: text/event-stream" in head.lower()
    assert b"cache-control: no-store" in head.lower()
    assert [("sample", {"n": 1}), ("sample", {"n": 2})] == events(client)
    assert not ended


def test_head_gets_no_stream(bench: HttpBench) -> None:
    assert 200 == bench.get("/events", method="HEAD").status
    assert [] == bench.opened


def test_a_client_that_leaves_is_forgotten(bench: HttpBench) -> None:
    client, stream = opened(bench)
    client.close()
    bench.until(lambda: stream.closed)
    assert 0 == len(bench.streams)
    assert not stream.send("sample", "1")


def test_half_closed_client_gets_the_end(bench: HttpBench) -> None:
    client, stream = opened(bench)
    client.finish()
    bench.until(lambda: client.eof)
    assert dechunked(bytes(client.received))[2]
    assert stream.closed


def test_streams_are_bounded_in_all_and_by_user(bench: HttpBench) -> None:
    def is_refused(path: str) -> bool:
        refused = bench.get(path)
        return refused.status == 503 and "too many" in refused.body.decode()

    first, _ = opened(bench, "/events?user=alice")
    opened(bench, "/events?user=alice")
    assert is_refused("/events?user=alice")
    assert is_refused("/events?user=alice&cluster=true")
    for user in "bcde":
        opened(bench, f"/events?user={user}")
    assert is_refused("/events?user=f")  # the last two are for operators
    assert is_refused("/events")
    opened(bench, "/events?user=admin&cluster=true")
    opened(bench, "/events?cluster=true")
    assert is_refused("/events?user=admin&cluster=true")
    first.close()
    bench.until(lambda: len(bench.streams) == 7)
    opened(bench, "/events?user=alice")


def test_a_slow_reader_is_skipped_and_told_so() -> None:
    bench = HttpBench(send_buffer=4096)
    try:
        client, stream = opened(bench, receive_buffer=4096)
        client.reads = False
        data, sent, skipped = json.dumps("x" * 10_000), 0, 0
        while skipped < 20:
            if stream.send("sample", data):
                sent += 1
            else:
                skipped += 1
            bench.settle()
        client.reads = True
        bench.until(lambda: len(events(client)) == sent)
        assert stream.send("sample", "1")
        bench.until(lambda: events(client)[-1] == ("sample", 1))
        assert ("skipped", {"events": 20}) == events(client)[-2]
    finally:
        bench.close()


def test_a_reader_that_stands_still_is_closed() -> None:
    bench = HttpBench(send_buffer=4096)
    try:
        client, stream = opened(bench, receive_buffer=4096)
        client.reads = False
        data = json.dumps("x" * 10_000)
        while stream.send("sample", data):
            bench.settle()
        bench.clock.now += streams.STUCK_S
        bench.streams.tick()
        bench.clock.now += 2
        bench.until(lambda: not bench.processor.connections)
        assert stream.closed
        assert 0 == len(bench.streams)
    finally:
        bench.close()


def test_a_reader_that_reads_is_not_closed(bench: HttpBench) -> None:
    client, stream = opened(bench)
    for number in range(10):
        assert stream.send("sample", str(number))
        bench.until(lambda number=number: len(events(client)) == number + 1)  # type: ignore[misc]
        bench.clock.now += streams.STUCK_S
        bench.streams.tick()
        bench.settle()
    assert not stream.closed


def test_a_quiet_stream_has_a_heartbeat(bench: HttpBench) -> None:
    client, stream = opened(bench)
    bench.streams.tick()
    bench.clock.now += streams.HEARTBEAT_S
    bench.streams.tick()
    bench.until(lambda: dechunked(bytes(client.received))[1])
    assert b":\n\n" == dechunked(bytes(client.received))[1]
    assert not stream.closed


def test_a_stream_ends_after_its_time(bench: HttpBench) -> None:
    client, stream = opened(bench)
    bench.clock.now += streams.LIFETIME_S
    bench.streams.tick()
    bench.until(lambda: client.eof)
    assert dechunked(bytes(client.received))[2]
    assert stream.closed


def test_streams_end_when_the_broker_stops(bench: HttpBench) -> None:
    client, stream = opened(bench)
    stream.send("sample", "1")
    bench.until(lambda: events(client))
    bench.stopping.set()
    bench.processor.drain()
    for connection in list(bench.processor.connections):
        connection.service.stopping(connection)
    bench.until(lambda: bench.processor.drained and client.eof)
    assert dechunked(bytes(client.received))[2]
    assert stream.closed


def test_stream_begun_during_a_stop_ends_at_once(bench: HttpBench) -> None:
    bench.stopping.set()
    client = bench.connect()
    client.send(HEAD)
    bench.until(lambda: client.eof)
    assert [] == bench.opened
    assert 0 == len(bench.streams)


def test_requests_behind_a_stream_wait_and_cost_nothing(bench: HttpBench) -> None:
    client, stream = opened(bench)
    client.send(HEAD * 100)
    bench.settle()
    assert 1 == len(bench.opened)
    assert stream.send("sample", "1")
    bench.until(lambda: events(client))
    client.close()
    bench.clock.now += streams.HEARTBEAT_S
    bench.streams.tick()
    bench.clock.now += 2
    bench.until(lambda: stream.closed)


def test_a_page_of_another_site_gets_no_stream(bench: HttpBench) -> None:
    reply = bench.get("/events", headers="origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n")
    assert 403 == reply.status
    assert [] == bench.opened


def test_http_1_0_gets_events_until_connection_ends(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(b"GET /events HTTP/1.0\r\nhost: localhost\r\n\r\n")
    bench.until(lambda: bench.opened)
    bench.opened[0].send("sample", "1")
    bench.until(lambda: b"event: sample\ndata: 1\n\n" in client.received)
    assert b"transfer-encoding" not in client.received.lower()
