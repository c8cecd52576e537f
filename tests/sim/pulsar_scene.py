"""Pulsar in a simulation: a topic that clients of both protocols use, subscriptions of all types, and what must hold."""

from typing import TYPE_CHECKING, Any

from broker.pulsar.subscriptions import consumer
from tests.sim.clients.client import Client
from tests.sim.clients.cross import CrossProducer, CrossReader
from tests.sim.clients.pulsar_client import PULSAR_PORT
from tests.sim.clients.pulsar_consumer import PulsarConsumer
from tests.sim.clients.pulsar_producer import PulsarProducer
from tests.sim.clients.stream import StreamClient
from tests.sim.history import History
from tests.sim.pulsar_ledger import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, LogLedger, SubscriptionLedger
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.host import Host

# The most bytes that a consumer's connection is given at once, and the entry that exceeds them.
LARGEST_SLICE = consumer._SLICE_BYTES + 100_000
# Kafka's name of it.
TOPIC = "pulsar"
_TICK_MS = 1000
_NAMES = {EXCLUSIVE: "exclusive", SHARED: "shared", FAILOVER: "failover", KEY_SHARED: "key-shared"}


class PulsarScene:
    def __init__(
        self, world: World, host: "Host", history: History, rng: Any, *, size_most: int, clock_jumps: bool
    ) -> None:
        host.listeners.append(f"pulsar://127.0.0.1:{PULSAR_PORT}")
        self.world = world
        topic = f"persistent://public/default/{TOPIC}"
        log = self.log = LogLedger(world, TOPIC)
        log.would_survive = lambda data: host.would_survive(f"/data/{TOPIC}-0", data)
        kinds = rng.sample(sorted(_NAMES), rng.randrange(1, 4))
        delays = rng.random() < 0.4 and not clock_jumps
        strict = rng.random() < 0.5
        host.settings["pulsar_delayed_delivery_strict"] = strict
        self.subscriptions = [
            SubscriptionLedger(world, log, _NAMES[kind], kind, early_most_ms=0 if strict else _TICK_MS)
            for kind in kinds
        ]
        common = (world, host.fabric, history)
        self.producers = [
            PulsarProducer(
                f"pulsar-producer-{n}",
                *common,
                log=log,
                topic=topic,
                sends=rng.randrange(5, 25),
                size_most=size_most,
                delays=delays and KEY_SHARED not in kinds,
            )
            for n in range(rng.randrange(1, 3))
        ]
        self.consumers = [
            PulsarConsumer(
                f"{subscription.name}-{n}",
                *common,
                subscription=subscription,
                topic=topic,
                queue=rng.choice((1, 3, 10, 100)),
            )
            for subscription in self.subscriptions
            for n in range(rng.randrange(1, 4))
        ]
        crosses: list[Client] = []
        if rng.random() < 0.5:
            crosses.append(CrossProducer("cross-producer", *common, log=log, topic=TOPIC, batches=rng.randrange(1, 8)))
        self.readers = [CrossReader("cross-reader", *common, log=log, topic=TOPIC)] if rng.random() < 0.6 else []
        self.clients: list[Client | StreamClient] = [*self.producers, *self.consumers, *crosses, *self.readers]
        host.settings["max_connections"] += len(self.clients)

    def leftovers(self, server: Any) -> dict[str, Any]:
        """What clients that have gone have left behind."""
        part = server.part("pulsar")
        topics = part.context.topics.loaded()
        tails = [topic.tail for topic in topics]
        logs = server.kafka.logs.partitions.values()
        return {
            # The end of a log that nobody waits for any more is watched until the next append.
            "watchers": sum(len(log.watchers.callbacks) for log in logs) - sum(tail._watch >= 0 for tail in tails),
            "producers": sum(len(topic.producers) for topic in topics),
            "consumers": sum(
                subscription.consumer_count for topic in topics for subscription in topic.subscriptions.values()
            ),
            "subscriptions that wait": sum(len(tail) for tail in tails),
        }
