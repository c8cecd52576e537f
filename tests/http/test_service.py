"""Requests and their answers, over real sockets and a processor that the test steps."""

import json

import pytest

from tests.http.harness import BODY_MAX, HttpBench, http_bench
from tests.network.harness import tiny_buffers

GET = b"GET /quick HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_route_gets_path_names_and_query_decoded(bench: HttpBench) -> None:
    reply = bench.get("/things/a%2Fb%20%C3%A9?x=1&y=a+b%26&x=2&empty")
    assert 200 == reply.status
    assert {"name": "a/b é"} == json.loads(reply.body)["names"]
    assert {"x": "2", "y": "a b&", "empty": ""} == json.loads(reply.body)["query"]
    assert "application/json" == reply.headers["content-type"]
    assert str(len(reply.body)) == reply.headers["content-length"]
    assert "Thu, 01 Jan 1970 00:16:40 GMT" == reply.headers["date"]
    assert "no-store" == reply.headers["cache-control"]


def test_body_reaches_handler_with_length_or_chunked(bench: HttpBench) -> None:
    assert "hello" == json.loads(bench.get("/things/a", method="PUT", body=b"hello").body)["body"]
    client = bench.connect()
    head = b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"3;why=not\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: x\r\n\r\n"
    (reply,) = bench.ask(client, head + chunks, "PUT")
    assert "hello" == json.loads(reply.body)["body"]


def test_large_body_arriving_in_parts_is_whole(bench: HttpBench) -> None:
    client = bench.connect()
    body = bytes(range(33, 126)) * 44
    head = b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    client.send(head + body[:1000])
    bench.settle()
    client.send(body[1000:2000])
    bench.settle()
    first, second = bench.ask(client, body[2000:] + GET, "PUT", "GET")
    assert body.decode() == json.loads(first.body)["body"]
    assert 200 == second.status


def test_pipelined_requests_are_answered_in_order(bench: HttpBench) -> None:
    client = bench.connect()
    asked = b"".join(b"GET /things/%d HTTP/1.1\r\nhost: localhost\r\n\r\n" % n for n in range(50))
    answers = bench.ask(client, asked, *["GET"] * 50)
    assert [str(n) for n in range(50)] == [json.loads(reply.body)["names"]["name"] for reply in answers]
    assert not client.eof


@pytest.mark.parametrize(
    "line", [b"GET /quick HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b"GET /quick HTTP/1.0\r\n\r\n"]
)
def test_connection_closes_after_answer_on_request(bench: HttpBench, line: bytes) -> None:
    client = bench.connect()
    (reply,) = bench.ask(client, line)
    assert 200 == reply.status
    assert "close" == reply.headers["connection"]
    bench.until(lambda: client.eof)
    assert not client.reset


def test_head_has_headers_of_get_without_body(bench: HttpBench) -> None:
    client = bench.connect()
    first, second = bench.ask(client, GET.replace(b"GET", b"HEAD") + GET, "HEAD", "GET")
    assert b"" == first.body
    assert first.headers == second.headers


def test_client_expecting_100_gets_continue_then_answer(bench: HttpBench) -> None:
    client = bench.connect()
    head = b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
    client.send(head)
    bench.until(lambda: client.received)
    assert b"HTTP/1.1 100 \r\n\r\n" == client.received
    client.received.clear()
    first, second = bench.ask(client, b"hello" + GET, "PUT", "GET")
    assert "hello" == json.loads(first.body)["body"]
    assert 200 == second.status
    # Chunked, in small parts.
    client.received.clear()
    client.send(head.replace(b"content-length: 5", b"transfer-encoding: chunked"))
    bench.until(lambda: client.received)
    client.received.clear()
    for byte in b"5\r\nworld\r\n0\r\n\r":
        client.send(bytes([byte]))
        bench.step()
    (reply,) = bench.ask(client, b"\n", "PUT")
    assert "world" == json.loads(reply.body)["body"]


def test_client_expecting_100_without_waiting_gets_one_answer(bench: HttpBench) -> None:
    client = bench.connect()
    head = b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
    (reply,) = bench.ask(client, head + b"hello", "PUT")
    assert "hello" == json.loads(reply.body)["body"]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nothing", "GET", 404),
        ("/things", "GET", 404),
        ("/things/", "GET", 404),
        ("/things/a/parts", "GET", 404),
        ("/things/a", "POST", 405),
        ("/quick", "OPTIONS", 405),
        ("/quick", "BREW", 501),
        ("/things/%ff", "GET", 400),
        ("*", "OPTIONS", 400),
        ("localhost:80", "CONNECT", 400),
        ("/quick?" + "&".join(["a=1"] * 102), "GET", 400),
    ],
)
def test_unknown_route_is_refused_and_connection_stays(bench: HttpBench, path: str, method: str, status: int) -> None:
    client = bench.connect()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    first, *_ = bench.ask(client, head, method)
    assert status == first.status
    assert json.loads(first.body)["reason"]
    client.received.clear()
    assert [200] == [reply.status for reply in bench.ask(client, GET)]


def test_a_path_says_which_methods_it_takes(bench: HttpBench) -> None:
    assert "GET, PUT, HEAD" == bench.get("/things/a", method="POST").headers["allow"]


def test_refusal_reason_is_told_but_not_failure(bench: HttpBench, capsys: pytest.CaptureFixture[str]) -> None:
    refused = bench.get("/refused", method="POST")
    assert (409, {"reason": "It is there already."}) == (refused.status, json.loads(refused.body))
    for path in ("/broken", "/disk"):
        failed = bench.get(path)
        assert 500 == failed.status
        assert b"secret" not in failed.body
    assert 2 == capsys.readouterr().err.count("http_request_failed")


def test_a_failure_is_logged_only_so_often(bench: HttpBench, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(30):
        bench.get("/disk")
    assert 10 == capsys.readouterr().err.count("http_request_failed")


def test_a_body_that_is_no_json_is_refused(bench: HttpBench) -> None:
    assert {"got": [1], "force": True} == json.loads(bench.get("/json?force=True", method="POST", body=b"[1]").body)
    for body in (b"{", b"[" * BODY_MAX, b"\xff", b"NaN", b""):
        assert 400 == bench.get("/json", method="POST", body=body).status
    assert 400 == bench.get("/json?force=maybe", method="POST", body=b"1").status


def test_client_that_hangs_up_ends_its_work(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(GET.replace(b"quick", b"endless"))
    bench.until(lambda: len(bench.channel), handling=False)
    client.abort()
    bench.until(lambda: not bench.processor.connections, handling=False)
    assert bench.handle()


def test_the_broker_s_stop_ends_the_work(bench: HttpBench) -> None:
    client = bench.connect()
    client.send(GET.replace(b"quick", b"endless"))
    bench.stopping.set()
    bench.until(lambda: client.eof)
    assert b"" == client.received


def test_a_long_answer_arrives_whole(bench: HttpBench) -> None:
    assert 3_000_000 == len(bench.get("/long").body)


def test_request_of_another_origin_or_host_is_refused(bench: HttpBench) -> None:
    assert 403 == bench.get("/quick", headers="origin: https://evil.example\r\n").status
    assert 403 == bench.get("http://evil.example/quick").status
    assert 200 == bench.get("http://localhost:1/quick").status
    assert 200 == bench.get("http://broker.example/quick").status


def test_requests_take_every_path_through_the_buffers() -> None:
    """With buffers so small that bodies move from the shared one to the connection's own, and to handlers."""
    with tiny_buffers(), http_bench() as bench:
        client = bench.connect()
        bodies = [bytes(range(65, 91)) * size for size in (0, 1, 3, 20, 60, 150, 2)]
        asked = b"".join(
            b"PUT /things/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            for body in bodies
        )
        for start in range(0, len(asked), 700):
            client.send(asked[start : start + 700])
            bench.settle()
        answers = bench.ask(client, b"", *["PUT"] * len(bodies))
        assert bodies == [json.loads(reply.body)["body"].encode() for reply in answers]
