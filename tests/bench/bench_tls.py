"""What TLS costs a processor: ``python -m tests.bench.bench_tls [--rounds N] [--connections N]``.

One thread: the steps of a processor with the echo service on a real TCP connection take turns with a client. Only the steps' CPU
is counted, and the best of several rounds is told. ``--connections N``: opens and closes so many connections instead and tells
what is left of their memory and descriptors.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.runtime.disk import SystemDisk
from tests import certificates
from tests.certificates import Algorithm, Identity
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, Client, ManualClock
from tests.network.tls_client import TlsClient, context, listener

_MIB = 1 << 20


class Timed:
    """A bench whose processor's CPU is counted."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cpu_s = 0.0

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            before = time.thread_time()
            self.bench.processor.step(0.0)
            self.cpu_s += time.thread_time() - before
            for client in self.bench.clients:
                client.pump()


def make(tls: bool, algorithm: Algorithm = "ecdsa", shown: Identity | None = None, **settings: str) -> Bench:
    if not tls:
        bench = Bench(high=64 * _MIB)
    else:

        def client(address: tuple[str, int], *, receive_buffer: int = 0) -> TlsClient:
            return TlsClient(address, receive_buffer=receive_buffer, tls=context(shown))

        secured = listener(certificates.server(algorithm), **settings)
        bench = Bench(tls=secured, client=client, high=64 * _MIB)  # type: ignore[arg-type]
    bench._ident = bench.roles.get_ident()
    return bench


def small_requests(tls: bool) -> float:
    """us of the processor for a request and its answer of 100 bytes."""
    bench = make(tls)
    client, timed = bench.connect(), Timed(bench)
    request = frame(b"e", b"x" * 95)
    count = 2000
    for _ in range(count):
        client.received.clear()
        client.send(request)
        timed.until(lambda: len(client.received) >= len(request))
    bench.close()
    return timed.cpu_s / count * 1e6


def received(tls: bool) -> float:
    """ms of the processor for 1 MiB that is received, in frames of 1 MiB."""
    bench = make(tls)
    client, timed = bench.connect(), Timed(bench)
    count = 60
    for number in range(count):
        client.send(frame(b"n", bytes(_MIB)))
        timed.until(lambda n=number: bench.processor.stats.requests > n)  # type: ignore[misc]
    bench.close()
    return timed.cpu_s / count * 1e3


def sent(tls: bool, file: bool) -> float:
    """ms of the processor for 1 MiB that is sent, from memory or from a file in the page cache."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(bytes(_MIB))
        bench = make(tls)
        service: EchoService = bench.service
        service.file = SystemDisk().open(str(path), read_only=True)
        client, timed = bench.connect(), Timed(bench)
        count = 60
        request = frame(b"f", f"0 {_MIB}".encode()) if file else frame(b"z", b"x")
        for _ in range(count):
            client.received.clear()
            client.send(request)
            timed.until(lambda: len(client.received) > _MIB)
        bench.close()
    return timed.cpu_s / count * 1e3


def handshakes(algorithm: Algorithm, with_client: bool) -> float:
    """us of the processor for a handshake, with accepting and closing the connection."""
    shown = certificates.client("alice", algorithm) if with_client else None
    bench = make(True, algorithm, shown, ssl_client_auth="required" if with_client else "none")
    timed = Timed(bench)
    count = 200
    for number in range(count):
        client = bench.dial()
        bench.processor.offer(bench.new_connection())
        timed.until(lambda n=number: bench.processor.handshakes.stats.completed > n)  # type: ignore[misc]
        bench.clients.remove(client)
        client.close()
        timed.until(lambda: not bench.processor.connections)
    bench.close()
    return timed.cpu_s / count * 1e6


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def flat(connections: int) -> None:
    """Open and close so many, 50 at a time; then hold 1,000."""
    bench = make(True)
    assert isinstance(bench.clock, ManualClock)

    def some(count: int) -> None:
        clients: list[Client] = []
        for _ in range(count):
            clients.append(bench.connect())
            clients[-1].send(frame(b"e", b"x" * 40_000))
        bench.until(lambda: all(len(each.received) > 40_000 for each in clients))
        for client in clients:
            client.close()
            bench.clients.remove(client)
        bench.until(lambda: not bench.processor.connections)
        bench.service.gone.clear()
        bench.service.connections.clear()

    some(50)
    for done in range(0, connections, 1000):
        gc.collect()
        print(f"after {done:6} connections: {resident_kib():8} KiB, {len(os.listdir('/proc/self/fd')):4} descriptors")
        for _ in range(1000 // 50):
            some(50)
    gc.collect()
    print(
        f"after {connections:6} connections: {resident_kib():8} KiB, {len(os.listdir('/proc/self/fd')):4} descriptors"
    )
    bench.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.connections:
        flat(arguments.connections)
        return

    def best(measure: Callable[..., float], *about: object) -> float:
        return min(measure(*about) for _ in range(arguments.rounds))

    for tls in (False, True):
        print(
            f"{'TLS' if tls else 'plaintext':10} {best(small_requests, tls):6.2f} us a small request  "
            f"{best(received, tls):6.3f} ms/MiB received  {best(sent, tls, False):6.3f} ms/MiB sent  "
            f"{best(sent, tls, True):6.3f} ms/MiB sent from a file"
        )
    algorithms: tuple[Algorithm, ...] = ("ecdsa", "rsa")
    for algorithm in algorithms:
        for with_client in (False, True):
            cost = best(handshakes, algorithm, with_client)
            print(
                f"handshake with {'P-256' if algorithm == 'ecdsa' else 'RSA-2048':8} "
                f"{'and a client certificate' if with_client else '':24} {cost:6.0f} us, {1e6 / cost:6.0f} a second"
            )


if __name__ == "__main__":
    main()
