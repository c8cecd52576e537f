"""What quotas cost a request, in CPU time of one thread.

    python -m tests.bench.bench_quota

The rows: a request through ``KafkaService`` without any quota and with quotas that do not throttle it; the decision alone, which
is looking up the client's quotas and counting; a client that was not seen before; and opening 100,000 configured quotas.
"""

import time
from collections.abc import Callable
from typing import Any

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.metering import Metering
from broker.kafka.service import KafkaService
from broker.network.quota import Throttling
from broker.runtime.clock import SystemClock
from broker.runtime.timers import Timer
from broker.security.principal import ANONYMOUS
from broker.security.quotas.client_quotas import ClientQuotas, Windows
from broker.security.quotas.entities import DEFAULT, Entity, Kind
from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.api_keys import ApiKey

_ROUNDS, _TIMES = 15, 20_000
_HUGE = 1e15


class Rows:
    """A catalogue that keeps quotas only."""

    def __init__(self, rows: list[tuple[str, str, float]]) -> None:
        self._rows = rows

    def load_quotas(self) -> list[tuple[str, str, float]]:
        return self._rows

    def alter_quotas(self, changes: Any) -> None:
        pass


def opened(rows: list[tuple[str, str, float]]) -> ClientQuotas:
    quotas = ClientQuotas(Rows(rows), SystemClock(), Windows())  # type: ignore[arg-type]
    quotas.load()
    return quotas


def least_us(work: Callable[[], object], times: int = _TIMES) -> float:
    """The CPU time (us) of one call, the best of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


def paired_us(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Both, in turns: what else the machine does meets both."""
    one, two = [], []
    for _ in range(_ROUNDS):
        for work, results in ((first, one), (second, two)):
            began = time.process_time()
            for _ in range(_TIMES):
                work()
            results.append((time.process_time() - began) / _TIMES * 1e6)
    return min(one), min(two)


class Context:
    def __init__(self, metering: Metering | None) -> None:
        self.metering = metering


class Connection:
    principal = ANONYMOUS
    on_flushed = None
    session = KafkaSession({})


class Outbox:
    def send(self, request: Any, parts: Any) -> None:
        pass


class Bare(KafkaService):
    """Does not look whether there are quotas."""

    def inline(self, request: Any) -> Any:
        assert isinstance(request, KafkaRequest)
        api = request.api
        size = len(request.frame) - request.body_offset
        if size <= api.inline_max_bytes and api.prepare is not None:
            try:
                return api.prepare(self._context, request)
            except TooManyEntries:
                return None
        return None

    def handle(self, request: Any, outbox: Any, prepared: Any) -> None:
        assert isinstance(request, KafkaRequest)
        try:
            if request.api.handle_raw is not None:
                request.api.handle_raw(self._context, request, outbox, prepared)
        except ProtocolError:
            outbox.close(request)


def service(
    quotas: ClientQuotas | None, timed: bool = False, kind: type[KafkaService] = KafkaService
) -> tuple[KafkaService, KafkaRequest]:
    clock = SystemClock()
    metering = None
    if quotas is not None:
        metering = Metering(quotas, Throttling(Timer(clock)), clock)
        metering.timed = timed

    def handle(_context: Any, request: Any, outbox: Any, _prepared: Any) -> None:
        outbox.send(request, [])

    request = KafkaRequest()
    request.api = Api(ApiKey.PRODUCE, 3, 9, handle_raw=handle, prepare=lambda *_: 1)
    request.api_version, request.body_offset, request.client_id = 9, 10, "client"
    request.frame = memoryview(bytes(1100))
    request.connection = Connection()  # type: ignore[assignment]
    return kind(Context(metering), {}), request  # type: ignore[arg-type]


def main() -> None:
    def call(to: KafkaService, request: KafkaRequest) -> Callable[[], object]:
        outbox: Any = Outbox()
        return lambda: to.handle(request, outbox, to.inline(request))

    everybody = str(Entity(client_id=DEFAULT))
    bytes_only = opened([(everybody, kind, _HUGE) for kind in (Kind.PRODUCE, Kind.FETCH)])
    all_kinds = opened([(everybody, kind, _HUGE) for kind in (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST)])
    none = opened([(str(Entity("somebody")), Kind.PRODUCE, _HUGE)])

    without, with_check = paired_us(call(*service(None, kind=Bare)), call(*service(None)))
    print(f"without any quota            {with_check - without:6.3f} us more than without looking whether there is one")
    for name, quotas, timed in (
        ("a client without a quota", none, False),
        ("byte rates", bytes_only, False),
        ("byte rates and request time", all_kinds, True),
    ):
        one, two = paired_us(call(*service(None)), call(*service(quotas, timed)))
        print(f"{name:28} {two - one:6.3f} us more than without any quota")

    now = time.monotonic()

    def decide() -> None:
        meter = bytes_only.meters("ANONYMOUS", "client").produce
        assert meter is not None
        meter.sensor.take(1000, meter.quota, now)

    print(f"the decision alone           {least_us(decide):6.3f} us")
    numbers = iter(range(10**9))
    print(f"a client not seen before     {least_us(lambda: bytes_only.meters('u', f'c{next(numbers)}'), 2000):6.3f} us")
    rows = [(str(Entity("user", f"client-{number}")), str(Kind.PRODUCE), 1e6) for number in range(100_000)]
    began = time.process_time()
    many = opened(rows)
    print(f"opening 100,000 quotas       {time.process_time() - began:6.3f} s")
    began = time.process_time()
    many.alter([(Entity("user", "client-5"), Kind.PRODUCE, 5.0)])
    print(f"changing one of them         {(time.process_time() - began) * 1000:6.3f} ms, without the disk")


if __name__ == "__main__":
    main()
