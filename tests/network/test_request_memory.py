"""Request memory is bounded, who cannot have any waits without harm, and nobody who stalls keeps it from the others."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.network import expiry
from broker.network.mute import MEMORY_SHORT
from tests.network.echo import EchoService, Waking, frame
from tests.network.harness import Bench, Client, Stage, tiny_buffers

MakeBench = Callable[..., Bench]


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    """Reads of 1 KiB, memory in steps of 256 bytes, frames of up to 64 bytes are small."""
    with tiny_buffers():
        yield


# A request that needs memory of its own where a small one does not.
LARGE = frame(b"e", b"l" * 200)


# A pool of so many bytes is exhausted by one `hoard`, which has grown beyond its end: nobody else may.
POOL = 2560


def hoard(bench: Bench, client: Client, size: int = 5000, send: int = 3500) -> None:
    """Have a client hold 4 KiB of memory with a frame that is not whole."""
    client.send(frame(b"e", b"h" * size)[:send])
    bench.settle()
    assert bench.connection_of(client).received.held


def test_connection_without_memory_is_muted_and_later_continues(bench: MakeBench) -> None:
    b = bench(memory=POOL)
    holder, waits = b.connect(), b.connect()
    hoard(b, holder)
    assert b.memory.exhausted
    waits.send(LARGE)
    b.settle()
    assert waits.frames == []
    assert b.connection_of(waits).interest == 0
    holder.send(frame(b"e", b"h" * 5000)[3500:])
    b.until(lambda: holder.frames and waits.frames)
    b.settle()
    assert b.memory.in_use == 0


def test_memory_returned_elsewhere_wakes_waiters(bench: MakeBench) -> None:
    stage = Stage(memory=POOL)
    one, two = bench(stage=stage), bench(stage=stage)
    holder, waits = one.connect(), two.connect()
    hoard(one, holder)
    waits.send(LARGE)
    two.settle()
    assert waits.frames == []
    holder.abort()
    one.until(lambda: not one.processor.connections)
    two.until(lambda: waits.frames)


def test_memory_returned_during_request_is_not_missed(bench: MakeBench) -> None:
    stage = Stage(memory=POOL)
    b = bench(stage=stage)
    client = b.connect()
    buffer = stage.memory.allocate(POOL, lambda: None)
    assert buffer is not None
    overdraws = stage.memory.allocate(256, lambda: None, grows=buffer)  # nobody may go beyond the end now
    assert overdraws is not None
    allocate = stage.memory.allocate

    def returned_just_after(*arguments: Any, **options: Any) -> bytearray | None:
        nonlocal buffer
        got = allocate(*arguments, **options)
        if got is None and buffer is not None:  # what another processor's thread may do before this one goes on
            taken, buffer = buffer, None
            stage.memory.release(taken)
        return got

    stage.memory.allocate = returned_just_after  # type: ignore[method-assign]
    client.send(LARGE)
    b.until(lambda: client.frames, what="muted for ever")
    stage.memory.release(overdraws)


def test_requests_in_flight_hold_their_memory_until_answered(bench: MakeBench) -> None:
    b = bench(memory=POOL)
    client, waits = b.connect(), b.connect()
    client.send(frame(b"H", b"x" * 3000))
    b.until(lambda: b.service.parked)
    assert b.memory.exhausted
    overdraws = b.memory.allocate(256, lambda: None, grows=bytearray())
    assert overdraws is not None
    waits.send(LARGE)
    b.settle()
    assert waits.frames == []
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"H")])
    b.until(lambda: client.frames and waits.frames)
    b.memory.release(overdraws)


def test_many_large_requests_pass_through_small_pool(
    bench: MakeBench,
) -> None:
    # Each gets its first buffer and needs a larger one while the others hold theirs: somebody must be able to grow.
    b = bench(memory=16 * 1024)
    clients = [b.connect() for _ in range(12)]
    payloads = [bytes([n]) * 20_000 for n in range(12)]
    for client, payload in zip(clients, payloads, strict=True):
        client.send(frame(b"p", payload)[:6000])
        b.step()
    b.settle()
    assert b.memory.exhausted
    for client, payload in zip(clients, payloads, strict=True):
        client.send(frame(b"p", payload)[6000:])
    b.until(lambda: all(client.frames for client in clients), what="they wait for each other")
    assert [client.frames for client in clients] == [[(b"p", payload)] for payload in payloads]
    b.clock.now += 3
    b.settle()
    assert b.memory.in_use == 0
    assert len(b.processor.connections) == 12


def test_pool_is_exceeded_by_one_growing_request(bench: MakeBench) -> None:
    b = bench(memory=16 * 1024)
    clients = [b.connect() for _ in range(12)]
    most = 0
    for n, client in enumerate(clients):
        client.send(frame(b"e", bytes([n]) * 20_000)[:19_000])
        b.settle()
        most = max(most, b.memory.in_use)
    # The pool, the buffer that was taken last, one request that may grow to its end, and what was read of the others.
    assert most <= 16 * 1024 + 16_384 + 20_480 + 256 + 12 * 64


def test_stalled_sender_holding_wanted_memory_is_dropped(bench: MakeBench) -> None:
    b = bench(memory=POOL)
    stalled, waits = b.connect(), b.connect()
    hoard(b, stalled)
    b.clock.now += 60
    b.step(2)
    assert not stalled.eof  # nobody wants the memory yet
    waits.send(LARGE)
    b.settle()
    for _ in range(7):
        b.clock.now += 1
        b.step(2)
    b.until(lambda: waits.frames)
    assert stalled.eof
    assert len(b.processor.connections) == 1


def test_stalled_sender_is_dropped_for_another_processor(bench: MakeBench) -> None:
    stage = Stage(memory=POOL)
    one, two = bench(stage=stage), bench(stage=stage)
    stalled, waits = one.connect(), two.connect()
    hoard(one, stalled)
    waits.send(LARGE)
    two.settle()
    assert waits.frames == []
    for _ in range(20):
        stage.clock.now += 1
        one.step()
        two.step()
    assert stalled.eof
    two.until(lambda: waits.frames)


def test_dripping_sender_holding_memory_is_dropped_too(bench: MakeBench) -> None:
    b = bench(memory=POOL)
    drips, waits = b.connect(), b.connect()
    hoard(b, drips, size=100_000)
    waits.send(LARGE)
    b.settle()
    for _ in range(40):
        b.clock.now += 1
        drips.send(b"h")
        b.step(2)
        if waits.frames:
            break
    assert waits.frames
    assert drips.eof


def test_only_larger_stalled_sender_is_dropped_if_enough(bench: MakeBench) -> None:
    b = bench(memory=POOL)
    small, large, waits = b.connect(), b.connect(), b.connect()
    small.send(frame(b"e", b"h" * 600)[:20])
    b.settle()
    b.clock.now += 1
    b.step()
    hoard(b, large)
    waits.send(LARGE)
    b.settle()
    for _ in range(30):
        b.clock.now += 1
        b.step(2)
    assert waits.frames
    assert large.eof
    assert not small.eof


def test_slower_upload_is_dropped_and_faster_stays(bench: MakeBench) -> None:
    b = bench(memory=2 << 20)
    slow, fast, waits = b.connect(), b.connect(), b.connect()
    data = frame(b"e", b"h" * 900_000)
    for client in (slow, fast):
        client.send(data[:600_000])
    b.until(lambda: b.processor.stats.bytes_in == 1_200_000)
    filler = b.memory.allocate(2 << 20, lambda: None, force=True)
    assert filler is not None
    waits.send(frame(b"e", b"l" * 40_000))
    sent = 600_000
    for _ in range(7):
        b.clock.now += 1
        fast.send(data[sent : sent + 40_000])
        sent += 40_000
        slow.send(b"h" * 1000)
        b.settle()
    assert slow.eof
    assert not fast.eof
    b.memory.release(filler)
    fast.send(data[sent:])
    b.until(lambda: fast.frames and waits.frames)


def test_small_requests_are_served_while_memory_is_held(bench: MakeBench) -> None:
    stage = Stage(memory=POOL)
    one, two = bench(stage=stage), bench(stage=stage)
    hoard(one, one.connect())
    for b in (one, two):
        assert b.memory.exhausted
        whole, split, pooled = b.connect(), b.connect(), b.connect()
        whole.send(frame(b"e", b"whole") * 20)
        pooled.send(frame(b"p", b"to a handler"))
        for byte in frame(b"e", b"byte by byte"):
            split.send(bytes([byte]))
            b.step(2)
        b.until(lambda: len(whole.frames) == 20 and split.frames and pooled.frames)  # noqa: B023
    assert one.memory.in_use == 4096


def test_senders_of_only_a_length_take_one_page(bench: MakeBench) -> None:
    b = bench(memory=64 * 1024)
    holders = [b.connect() for _ in range(200)]
    for client in holders:
        client.send(frame(b"e", b"h" * 30_000)[:12])
    b.settle()
    assert b.memory.in_use == 200 * 16
    client = b.connect()
    client.send(frame(b"e", b"l" * 30_000))
    b.until(lambda: client.frames)
    assert not any(holder.eof for holder in holders)


def test_remaining_memory_completes_half_received_requests_together(bench: MakeBench) -> None:
    # All hold a half of their frame, so that nobody could go on if a buffer had to be free below the end for each.
    b = bench(memory=32 * 1024)
    data = frame(b"e", b"u" * 4000)
    clients = [b.connect() for _ in range(16)]
    for client in clients:
        client.send(data[:2048])
        b.step(3)
    b.settle()
    assert b.memory.exhausted
    for client in clients:
        client.send(data[2048:3000])
    b.settle()
    assert sum(b.connection_of(client).received.size > 2048 for client in clients) > 1
    for client in clients:
        client.send(data[3000:])
    b.until(lambda: all(client.frames for client in clients))


def test_refused_system_memory_costs_only_the_needing_connection(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int = 0) -> bytearray:
        raise MemoryError("asked for")

    b = bench()
    grows, keeps, copies, other = (b.connect() for _ in range(4))
    hoard(b, grows)
    b.memory.trim()
    monkeypatch.setattr("broker.network.memory_pool.bytearray", refuse, raising=False)
    grows.send(b"h" * 900)
    keeps.send(frame(b"e", b"x" * 5000)[:2000])
    copies.send(frame(b"p", b"x" * 500))
    b.until(lambda: grows.eof and keeps.eof and copies.eof)
    other.send(frame(b"e") + frame(b"p"))
    b.until(lambda: len(other.frames) == 2)
    assert b.memory.in_use == 0


def test_memory_of_abandoned_requests_counts_until_handled(bench: MakeBench) -> None:
    b = bench(memory=16 * 1024)
    for waiting in range(1, 5):  # their clients leave as soon as the request is with the handlers
        client = b.connect()
        client.send(frame(b"p", b"x" * 3000))
        b.until(lambda: len(b.channel) == waiting, handling=False)  # noqa: B023
        client.abort()
        b.until(lambda: not b.processor.connections, handling=False)
    assert b.memory.in_use >= 4 * 3005
    held = b.memory.in_use
    assert b.handle()
    b.step()
    assert b.memory.in_use < held
    while b.handle():
        pass
    b.step()
    assert b.memory.in_use == 0


def test_stream_frames_waiting_for_handler_are_counted(bench: MakeBench) -> None:
    b = bench(EchoService(in_flight_max=0), memory=16 * 1024)
    client = b.connect()
    client.send(frame(b"p", b"x" * 100) * 20)
    b.until(lambda: len(b.channel) == 20, handling=False)
    assert b.memory.in_use >= 20 * 105
    while b.handle():
        b.step()
    b.until(lambda: len(client.frames) == 20)
    assert b.memory.in_use == 0
    client.send(frame(b"p", b"x" * 100) * 20)
    b.until(lambda: len(b.channel) == 20, handling=False)
    client.abort()
    b.until(lambda: not b.processor.connections, handling=False)
    assert b.memory.in_use >= 20 * 105
    while b.handle():
        pass
    b.step()
    assert b.memory.in_use == 0


def test_sender_waiting_for_memory_is_not_stalled(bench: MakeBench) -> None:
    # `parked` has grown beyond the end with a request that is being worked on; the two others cannot send what they would.
    b = bench(memory=8 * 1024)
    parked, grows, small = b.connect(), b.connect(), b.connect()
    parked.send(frame(b"H", b"x" * 30_000)[:1000])
    b.settle()
    grows.send(frame(b"e", b"g" * 30_000)[:4000])
    b.settle()
    parked.send(frame(b"H", b"x" * 30_000)[1000:])
    b.until(lambda: b.service.parked)
    grows.send(frame(b"e", b"g" * 30_000)[4000:])
    small.send(LARGE)
    b.settle()
    assert b.connection_of(grows).holds & MEMORY_SHORT
    for _ in range(40):
        b.clock.now += 1
        b.step(2)
    assert not grows.eof
    assert not small.eof
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"H")])
    b.until(lambda: parked.frames and grows.frames and small.frames)


def test_peer_that_reads_nothing_is_dropped_for_memory(bench: MakeBench) -> None:
    b = bench(memory=2048, high=64 * 1024, low=1024, send_buffer=8192)
    deaf, waits = b.connect(receive_buffer=4096), b.connect()
    deaf.reads = False
    deaf.send(frame(b"z", b"x" * 4) + frame(b"e", b"x" * 90) * 9)
    b.settle()
    deaf.send(frame(b"e", b"h" * 4000))
    b.settle()
    filler = b.memory.allocate(POOL, lambda: None, force=True)
    assert filler is not None
    assert b.connection_of(deaf).received.held
    waits.send(LARGE)
    for _ in range(20):
        b.clock.now += 1
        b.step(2)
    assert b.service.gone
    assert b.service.gone[0].peer.port == deaf.socket.getsockname()[1]
    b.memory.release(filler)
    b.until(lambda: waits.frames)


def test_slow_reader_is_not_dropped_for_its_memory(bench: MakeBench) -> None:
    b = bench(memory=2048, high=64 * 1024, low=1024, send_buffer=8192)
    slow, waits = b.connect(receive_buffer=4096), b.connect()
    slow.reads = False
    slow.send(frame(b"z", b"x" * 4) + frame(b"e", b"x" * 90) * 9)
    b.settle()
    filler = b.memory.allocate(POOL, lambda: None, force=True)
    assert filler is not None
    assert b.connection_of(slow).received.held
    waits.send(LARGE)
    b.settle()
    for _ in range(20):
        b.clock.now += 1
        before = b.processor.stats.bytes_out

        def read_some() -> bool:
            slow.received += slow.trickle(1 << 16)
            return b.processor.stats.bytes_out > before + 100_000  # noqa: B023

        b.until(read_some)
    assert not b.service.gone
    b.memory.release(filler)
    slow.reads = True
    b.until(lambda: waits.frames and len(slow.frames) == 10)


def test_large_request_read_at_once_is_counted(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"H", b"x" * 500))
    b.until(lambda: b.service.parked)
    assert b.memory.in_use >= 505
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"H")])
    b.until(lambda: client.frames)
    client.take(1)
    client.send(frame(b"H", b"x" * 500) + frame(b"e", b"y" * 100) + frame(b"p", b"z" * 300))
    b.until(lambda: b.service.parked)
    request, outbox = b.service.parked.pop()
    assert request.copy == frame(b"H", b"x" * 500)
    outbox.send(request, [request.copy])
    b.until(lambda: len(client.frames) == 3)
    assert client.received == frame(b"H", b"x" * 500) + frame(b"e", b"y" * 100) + frame(b"p", b"z" * 300)
    b.clock.now += 3
    b.step(2)
    assert b.memory.in_use == 0


def test_unused_memory_returns_to_system_while_connections_stay(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e", b"x" * 3000) + frame(b"e"))
    b.until(lambda: len(client.frames) == 2)
    assert b.memory.idle > 0
    b.clock.now += 3
    b.step(2)
    assert b.memory.idle == 0


def test_client_waiting_for_our_answer_is_not_stalled(bench: MakeBench) -> None:
    b = bench(memory=1024)
    parked, waits = b.connect(), b.connect()
    parked.send(frame(b"H", b"x" * 600) + frame(b"e", b"y" * 200) + frame(b"e"))
    b.until(lambda: b.service.parked)
    assert b.memory.exhausted
    assert b.connection_of(parked).received.pending > 0
    waits.send(LARGE)
    for _ in range(40):
        b.clock.now += 1
        b.step(2)
    assert not parked.eof
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"H")])
    b.until(lambda: len(parked.frames) == 3 and waits.frames)


def test_kept_memory_returns_after_a_quiet_moment(bench: MakeBench) -> None:
    b = bench()
    client = b.connect()
    client.send(frame(b"e", b"x" * 3000))
    b.until(lambda: client.frames)
    assert b.memory.in_use > 0
    b.clock.now += 2 * expiry._KEEP_MEMORY_S
    b.step(2)
    assert b.memory.in_use == 0


def test_kept_memory_returns_at_once_when_others_wait(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_LOOKED_AT", 1)
    b = bench(memory=64 * 1024)
    keepers = [b.connect() for _ in range(8)]
    for client in keepers:
        client.send(frame(b"e", b"x" * 3000))
        b.until(lambda: client.frames)  # noqa: B023
    assert b.memory.in_use == 8 * 3072
    # Nobody gets any until all of it has gone back.
    filler = b.memory.allocate(62 * 1024, lambda: None, force=True)
    overdraws = b.memory.allocate(256, lambda: None, grows=bytearray())
    assert filler is not None
    assert overdraws is not None
    waits = b.connect()
    waits.send(frame(b"e", b"l" * 100))
    b.settle()
    assert waits.frames == []
    b.clock.now += 2 * expiry._KEEP_MEMORY_S
    b.step(2)
    b.settle()
    assert waits.frames
    assert not any(client.eof for client in keepers)


def test_whole_frames_are_served_without_more_memory(bench: MakeBench) -> None:
    b = bench(EchoService(), memory=1024)
    client = b.connect()
    client.send(frame(b"h") + frame(b"e", b"x" * 100) * 40)
    b.settle()
    filler = b.memory.allocate(1024, lambda: None, force=True)
    assert filler is not None
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"h")])
    for _ in range(50):
        b.step()
    assert len(client.frames) >= 10  # all that had arrived when memory ran out
    b.memory.release(filler)
    b.until(lambda: len(client.frames) == 41)


def test_stored_frames_are_served_before_more_memory(bench: MakeBench) -> None:
    # A parked request is answered in the same round in which more arrives behind it, and its connection's memory is full.
    b = bench(Waking(), memory=1024)
    wakes, client = b.connect(), b.connect()
    client.send(frame(b"h") + frame(b"n", b"x" * 123) * 6)
    b.settle()
    received = b.connection_of(client).received
    assert received.pending == len(received.view) == 768
    wakes.send(frame(b"e", b"x" * 20)[:10])
    b.settle()
    assert b.memory.exhausted
    taken = [b.memory.allocate(256, lambda: None, force=True)]
    taken.append(b.memory.allocate(256, lambda: None, grows=taken[0]))  # the one right to go beyond the end
    wakes.send(frame(b"e", b"x" * 20)[10:])
    client.send(frame(b"n", b"y" * 123) * 3)
    for _ in range(20):
        b.step()
    assert b.service.handled.count(b"n") >= 6
    for buffer in taken:
        assert buffer is not None
        b.memory.release(buffer)
    b.until(lambda: b.service.handled.count(b"n") == 9)


def test_closing_connection_returns_its_memory_in_any_state(bench: MakeBench) -> None:
    b = bench(memory=64 * 1024)
    half, flying, done = b.connect(), b.connect(), b.connect()
    hoard(b, half)
    flying.send(frame(b"H", b"x" * 3000) + b"\0\0")
    done.send(frame(b"e", b"x" * 3000))
    b.until(lambda: b.service.parked and done.frames)
    assert b.memory.in_use > 0
    for client in (half, flying, done):
        client.abort()
    # One that sent more while muted is not looked at before its answer is due.
    b.until(lambda: len(b.processor.connections) == 1)
    request, outbox = b.service.parked.pop()
    outbox.send(request, [frame(b"H")])
    b.until(lambda: not b.processor.connections)
    assert b.memory.in_use == 0
