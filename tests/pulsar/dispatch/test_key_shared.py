"""Key_Shared, event by event, and against a model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.key_shared import KeyShared
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor
from tests.pulsar.dispatch.world import Machine, World


class KeyedWorld(World):
    def check_order(self, consumer: Consumer, entry: Entry) -> None:
        """Nobody else has an entry of the key, and nothing before it is still to be delivered."""
        for other in self.log[self.gone :]:
            if other.sticky_hash == entry.sticky_hash and not other.marker and not other.deliver_at_ms:
                holder = self.holder.get(other.offset)
                assert holder in (None, consumer), "the key is out at two consumers"
                if other.offset < entry.offset and not self.acked(other):
                    assert holder is consumer or entry.deliver_at_ms, "an older entry of the key waits"


class KeySharedMachine(Machine):
    @initialize(
        limits=st.sampled_from([(50_000, 200_000, 40_000), (5, 12, 40_000), (1, 1, 40_000), (30, 100, 10)]),
        consistent=st.booleans(),
        batch=st.sampled_from([100, 7]),
        quick=st.booleans(),
    )
    def start(self, limits: tuple[int, int, int], consistent: bool, batch: int, quick: bool) -> None:
        cursor = Cursor()
        per_consumer, per_subscription, look_ahead = limits
        config = DispatchSettings(
            unacked_max_per_consumer=per_consumer,
            unacked_max_per_subscription=per_subscription,
            look_ahead_max=look_ahead,
            consistent_hashing=consistent,
            read_entries_max=batch,
        )
        self.begin(KeyedWorld(KeyShared(cursor, config, DelayedTracker()), cursor), quick)


TestKeyShared = KeySharedMachine.TestCase
TestKeyShared.settings = settings(stateful_step_count=60, deadline=None)
