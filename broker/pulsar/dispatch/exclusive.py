"""Exclusive: a subscription with one consumer. Readers use it as well."""

from collections.abc import Collection

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.single_active import SingleActive
from broker.pulsar.refusals import ConsumerBusy
from broker.pulsar.subscriptions.cursor import Cursor


class OnlyOne:
    delay_s = 0.0
    announced = False

    def __init__(self) -> None:
        self._consumers: dict[Consumer, None] = {}

    def admit(self, consumers: Collection[Consumer]) -> None:
        if consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")  # clients' tests look for these words

    def join(self, consumer: Consumer) -> None:
        self._consumers[consumer] = None

    def leave(self, consumer: Consumer) -> None:
        del self._consumers[consumer]

    def active(self) -> Consumer:
        return next(iter(self._consumers))


class Exclusive(SingleActive):
    def __init__(self, cursor: Cursor, settings: DispatchSettings, limit: RateLimit | None = None) -> None:
        super().__init__(cursor, OnlyOne(), settings, limit or RateLimit())
