"""Hostile, slow and broken HTTP clients: they lose their answer or connection, and cost nobody else anything."""

import json
from collections.abc import Iterator

import pytest

from broker.http.chunks import CHUNKING_MAX_BYTES
from broker.http.session import HEAD_MAX_BYTES
from tests.http.harness import BODY_MAX, TIMEOUT_S, HttpBench, http_bench

GET = b"GET /quick HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEAD = b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    with http_bench() as made:
        yield made


def serves(bench: HttpBench) -> bool:
    return 200 == bench.get("/quick").status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00", 400, id="TLS on a listener without"),
        pytest.param(b"\r\n", 400, id="an empty line"),
        pytest.param(b"GET /quick HTTP/1.1\r\n\r\n", 400, id="no Host"),
        pytest.param(b"GET /quick HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, id="two Hosts"),
        pytest.param(b"GET /quick HTTP/2.0\r\nhost: localhost\r\n\r\n", 505, id="HTTP/2 as text"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="the preface of HTTP/2"),
        pytest.param(b"GET /quick\r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"GET /qu\0ick HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, id="NUL in the target"),
        pytest.param(HEAD + b"x: a\0b\r\n\r\n", 400, id="NUL in a header"),
        pytest.param(HEAD + b"x : y\r\n\r\n", 400, id="a space before the colon"),
        pytest.param(HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400, id="two lengths"),
        pytest.param(HEAD + b"content-length: -1\r\n\r\n", 400, id="a negative length"),
        pytest.param(HEAD + b"content-length: +1\r\n\r\n", 400, id="a signed length"),
        pytest.param(HEAD + b"content-length: 1_0\r\n\r\n", 400, id="a length that only Python reads"),
        pytest.param(HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 400, id="a length of 5,000 digits"),
        pytest.param(HEAD + b"content-length: 5000\r\n\r\n", 413, id="a long body"),
        pytest.param(HEAD + b"content-length: 5000\r\nexpect: 100-continue\r\n\r\n", 413, id="a long body, announced"),
        pytest.param(
            HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="smuggling: CL and TE"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400, id="smuggling: TE and CL"
        ),
        pytest.param(HEAD + b"transfer-encoding: chunked, identity\r\n\r\n", 501, id="smuggling: two encodings"),
        pytest.param(HEAD + b"transfer-encoding: xchunked\r\n\r\n", 501, id="smuggling: an encoding nobody knows"),
        pytest.param(HEAD + b"transfer-encoding:\x0bchunked\r\n\r\n", 400, id="smuggling: a hidden encoding"),
        pytest.param(
            b"PUT /things/a HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="smuggling: chunks of HTTP/1.0",
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhelp\r\n0\r\n\r\n", 400, id="a chunk that is too long"
        ),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n0x2\r\nhe\r\n0\r\n\r\n", 400, id="a chunk of size 0x2"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n", 400, id="a chunk of size -1"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\0: x\r\n\r\n", 400, id="a trailer that is none"),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n" * 5,
            400,
            id="lost framing",
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffff\r\n" + b"x" * 5000, 413, id="a huge chunk"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"e" * (CHUNKING_MAX_BYTES + 1), 413, id="a long extension"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"t: x\r\n" * 3000, 413, id="thousands of trailers"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1;e=eeee\r\nx\r\n" * 3000,
            413,
            id="thousands of tiny chunks",
        ),
        pytest.param(HEAD + b"x: y\r\n" * 200 + b"\r\n", 431, id="hundreds of headers"),
        pytest.param(HEAD + b"x: " + b"y" * HEAD_MAX_BYTES, 431, id="a long header"),
        pytest.param(b"GET /" + b"a" * HEAD_MAX_BYTES, 431, id="a long target"),
        pytest.param(b"A" * HEAD_MAX_BYTES, 431, id="no line"),
    ],
)
@pytest.mark.parametrize("at_a_time", [1 << 20, 7])
def test_unreadable_request_is_answered_and_connection_closed(
    bench: HttpBench, data: bytes, status: int, at_a_time: int
) -> None:
    client = bench.connect()
    for start in range(0, len(data), at_a_time):
        client.send(data[start : start + at_a_time])
        bench.step()
    (reply,) = bench.ask(client, b"")
    assert status == reply.status
    assert json.loads(reply.body)["reason"]
    assert "close" == reply.headers["connection"]
    before = bytes(client.received)
    client.send(GET)
    bench.settle()
    assert before == client.received  # no byte after it is read as a request
    bench.pass_time(1.5)
    bench.pass_time(1.5)
    assert client.eof
    assert before == client.received
    assert serves(bench)


def test_client_still_sending_long_body_sees_the_answer(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(HEAD + b"content-length: 9000000\r\n\r\n" + b"x" * 9_000_000)
    bench.until(lambda: not client.unsent)
    for _ in range(10):  # while bytes came
        bench.pass_time(1.5)
    assert client.eof
    assert not client.reset
    assert client.received.startswith(b"HTTP/1.1 413 ")


def test_endless_sender_is_cut_off(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(b"\r\n")
    bench.settle()
    for _ in range(9):
        client.send(b"x")
        bench.settle()
        bench.pass_time(1.1)
        assert not client.eof
    client.send(b"x")
    bench.settle()
    bench.pass_time(1.1)
    bench.until(lambda: client.eof)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"G", id="in the first line"),
        pytest.param(HEAD, id="in the head"),
        pytest.param(HEAD + b"content-length: 5\r\n\r\nhell", id="in the body"),
        pytest.param(
            HEAD + b"content-length: 5\r\nexpect: 100-continue\r\n\r\n", id="before the body that it has announced"
        ),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", id="between two chunks"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nt: x\r\n", id="in the trailers"),
        pytest.param(GET + b"G", id="in the second request"),
    ],
)
def test_slow_request_ends_the_connection(bench: HttpBench, data: bytes) -> None:
    client = bench.connect()
    client.send(data)
    bench.settle()
    bench.pass_time(TIMEOUT_S - 2)
    # A byte now and then does not help.
    client.send(b"\r" if data.endswith(b"\n") else b"x"[: not data.endswith(b"hell")])
    bench.settle()
    assert not client.eof
    bench.pass_time(3)
    assert client.eof
    assert serves(bench)


def test_connection_between_requests_has_only_idle_deadline(bench: HttpBench) -> None:
    client = bench.connect()
    bench.ask(client, GET)
    bench.pass_time(TIMEOUT_S * 3)
    client.received.clear()
    assert [200] == [reply.status for reply in bench.ask(client, GET)]


def test_slow_handler_does_not_end_its_connection(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(HEAD[:10])
    bench.settle()
    client.send(HEAD[10:] + b"content-length: 1\r\n\r\nx")
    bench.until(lambda: len(bench.channel), handling=False)
    bench.clock.now += TIMEOUT_S * 2
    bench.settle(handling=False)
    assert [200] == [reply.status for reply in bench.ask(client, b"", "PUT")]


def test_request_sent_byte_by_byte_is_answered(bench: HttpBench) -> None:
    client = bench.connect()
    body = b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\nt: x\r\n\r"
    for byte in GET + HEAD + body:
        client.send(bytes([byte]))
        bench.step()
    first, second = bench.ask(client, b"\n", "GET", "PUT")
    assert 200 == first.status
    assert "hello" == json.loads(second.body)["body"]


def test_pipelined_requests_are_parsed_only_once(bench: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte reaches the parser once, regardless of the following bytes."""
    from broker.http import session

    parsed = []
    original = session.next_event
    monkeypatch.setattr(
        session, "next_event", lambda parser, data=b"": parsed.append(len(data)) or original(parser, data)
    )
    client = bench.connect()
    client.send(GET * 2000)
    bench.until(lambda: bench.processor.stats.requests == 2000)
    assert len(GET) * 2000 == sum(parsed)


def test_client_that_reads_nothing_is_not_served_further(bench: HttpBench) -> None:
    client = bench.connect(receive_buffer=4096)
    client.reads = False
    client.send(GET.replace(b"quick", b"long") * 100)
    bench.settle()
    connection = bench.connection_of(client)
    assert connection.outgoing_bytes < 8_000_000
    assert serves(bench)


def test_bodies_up_to_the_limit_are_taken(bench: HttpBench) -> None:
    assert 200 == bench.get("/things/a", method="PUT", body=b"x" * BODY_MAX).status
    assert 413 == bench.get("/things/a", method="PUT", body=b"x" * (BODY_MAX + 1)).status


def test_missed_deadlines_are_logged_at_a_bounded_rate(bench: HttpBench, capsys: pytest.CaptureFixture[str]) -> None:
    from broker import log

    log.configure("info", "json")
    try:
        clients = [bench.connect().send(b"G") for _ in range(30)]
        bench.settle()
        bench.pass_time(TIMEOUT_S + 2)
        assert all(client.eof for client in clients)
        assert 10 == capsys.readouterr().err.count("deadline_missed")
    finally:
        log.configure("warning", "auto")
