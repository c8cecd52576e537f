"""What a service finds out when it is asked whether it handles a request inline reaches its handling, on whatever thread."""

from collections.abc import Callable

from broker.network.service import Handover
from tests.network.echo import frame
from tests.network.harness import Bench

MakeBench = Callable[..., Bench]


def test_prepared_value_reaches_inline_and_handler_requests(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e") + frame(b"p") + frame(b"s"))
    b.until(lambda: len(client.frames) == 3)
    assert b.service.prepared == [b"e", b"p", b"s"]
    assert b.processor.stats.inline == 1


def test_parked_request_is_handled_again_with_handed_value(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"h"))
    b.settle()
    ((request, outbox),) = b.service.parked
    outbox.hand_over(request, Handover("slow", b"again"))
    b.settle()
    assert b.service.prepared == [b"h", b"again"]
    assert request.lane == "slow"
    assert request.prepared is None  # the request keeps nothing that may refer to it


def test_it_is_kept_while_the_channel_is_full(bench: MakeBench) -> None:
    b = bench(queue=1)
    first, second = b.connect(), b.connect()
    first.send(frame(b"p"))
    b.settle(handling=False)
    second.send(frame(b"s"))
    b.settle(handling=False)
    assert b.connection_of(second).held is not None
    b.until(lambda: second.frames)
    assert b.service.prepared == [b"p", b"s"]
