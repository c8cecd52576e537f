"""A consumer of a Pulsar subscription: gives permits, acknowledges, refuses, leaves and comes back, until all is acknowledged."""

from typing import Any

from tests.pulsar_frames import Frame, command
from tests.sim.clients.pulsar_client import PulsarClient
from tests.sim.pulsar_ledger import KEY_SHARED, SHARED, SINGLE_ACTIVE, Member, SubscriptionLedger

_EARLIEST = 1
# In the second act: how long a consumer waits for messages to leave behind, and for another consumer that can take them.
_DESERTS_WITHIN_S = 5.0
_LAST = 2**64 - 1


class PulsarConsumer(PulsarClient):
    def __init__(self, *args: Any, subscription: SubscriptionLedger, topic: str, queue: int) -> None:
        super().__init__(*args)
        self.subscription = subscription
        self._topic = topic
        self._queue = queue
        self._consumer = 0
        self._member: Member | None = None
        self._ledgers: dict[int, int] = {}  # entry -> ledger
        self._consumed = 0  # since the last permits
        self._zeal = self.rng.choice((1.0, 0.5, 0.1))
        self._close_at = self.world.now + self.rng.expovariate(0.3)
        self._refuses = self.rng.choice((0.0, 0.05, 0.3)) if subscription.kind == SHARED else 0.0
        self._again = self.rng.choice((0.0, 0.02)) if subscription.kind != KEY_SHARED else 0.0

        self._rudely = self.rng.random() < 0.5

    @property
    def done(self) -> bool:
        return self.subscription.complete

    @property
    def wanted(self) -> bool:
        return not self.done

    def lost(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._member is not None:
            self._member.left = True
            self._member = None

    # -- actions ------------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        member = self._member
        if member is None:
            if not self.asks("SUBSCRIBE") and not self.asks("CLOSE_CONSUMER") and not self.done:
                self._subscribe()
            return
        if self._consumed * 2 >= self._queue or (self._consumed and self.quiet):
            self._grant(self._consumed)
        if self._may_desert:
            if member.holds and self.subscription.others(member):
                self._desert()
            return
        if member.holds and (self.quiet or self.rng.random() < self._zeal):
            self._attend(member)
        if self.rng.random() < 0.05 and not self.asks("GET_LAST_MESSAGE_ID"):
            self.ask("GET_LAST_MESSAGE_ID", self.subscription.confirmed_before, consumer_id=self._consumer)
        if not self.quiet and self._again and self.rng.random() < self._again:
            self.subscription.asked(member, None)
            self.send(command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=self._consumer))
        if not self.quiet and self.world.now >= self._close_at:
            self._close_at = self.world.now + self.rng.expovariate(0.5)
            self._leave()
            self.ask("CLOSE_CONSUMER", consumer_id=self._consumer)

    @property
    def _may_desert(self) -> bool:
        subscription = self.subscription
        return (
            self.quiet
            and subscription.kind not in SINGLE_ACTIVE
            and not subscription.deserted
            and self.world.now < self.quiet_since + _DESERTS_WITHIN_S
        )

    def _desert(self) -> None:
        """Leave with all that it holds, while another goes on, who must be given it: in the second act nobody else leaves, so
        that the subscription does not begin anew."""
        self.subscription.deserted = True
        self.world.note(f"{self.name} deserts")
        if self._rudely:
            self.disconnect(rudely=True)
        else:
            self._leave()
            self.ask("CLOSE_CONSUMER", consumer_id=self._consumer)

    def _subscribe(self) -> None:
        self._consumer += 1
        self._consumed = 0
        self.ask(
            "SUBSCRIBE",
            topic=self._topic,
            subscription=self.subscription.name,
            subType=self.subscription.kind,
            consumer_id=self._consumer,
            consumer_name=self.name,
            initialPosition=_EARLIEST,
            durable=True,
        )

    def _grant(self, permits: int) -> None:
        assert self._member is not None
        self._member.granted += permits
        self._consumed -= min(permits, self._consumed)
        self.send(command("FLOW", consumer_id=self._consumer, messagePermits=permits))

    def _attend(self, member: Member) -> None:
        """Some of the messages that it holds."""
        rng, subscription = self.rng, self.subscription
        held = sorted(member.holds)
        chosen = held if self.quiet else rng.sample(held, rng.randrange(1, len(held) + 1))
        if self._refuses and not self.quiet and rng.random() < self._refuses:
            ids = [self._id(entry) for entry in chosen]
            subscription.asked(member, chosen)
            self.send(command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=self._consumer, message_ids=ids))
            return
        cumulative = subscription.kind in SINGLE_ACTIVE and rng.random() < 0.4
        if cumulative:
            chosen = [max(held)]
            subscription.acknowledging_all(member, chosen[0])
        else:
            subscription.acknowledging(member, chosen)
        fields = {
            "consumer_id": self._consumer,
            "ack_type": int(cumulative),
            "message_id": [self._id(entry) for entry in chosen],
        }
        if rng.random() < 0.6:
            self.ask("ACK", (cumulative, chosen), **fields)
        else:
            self.send(command("ACK", **fields))

    def _id(self, entry: int) -> dict[str, int]:
        return {"ledgerId": self._ledgers[entry], "entryId": entry}

    # -- received commands --------------------------------------------------------------------------------------------------

    def answered(self, kind: str, context: Any, message: Frame) -> None:
        if kind == "SUBSCRIBE":
            assert self.socket is not None
            self._member = Member(self.name, self.world, self.socket.wire, self.world.now)
            self.subscription.joined(self._member)
            self._grant(self._queue)
        elif kind == "ACK":
            if message.body.HasField("error"):
                self.excuse("ACK", self._error(message.body))
                return
            cumulative, entries = context
            if cumulative:
                self.subscription.confirm_all(entries[0])
            else:
                self.subscription.confirm(entries)
            self.history.on_promise()
        elif kind == "GET_LAST_MESSAGE_ID" and message.body.HasField("consumer_mark_delete_position"):
            position = message.body.consumer_mark_delete_position.entryId
            self.subscription.marked(-1 if position == _LAST else position, self.name, confirmed=context)

    def refused(self, kind: str, context: Any, error: str) -> None:
        if kind == "SUBSCRIBE" and error == "ConsumerBusy":
            return  # another has it, or the broker has not noticed that nobody has it any more
        if kind in ("GET_LAST_MESSAGE_ID", "ACK") and self._member is None:
            return  # closed meanwhile
        super().refused(kind, context, error)

    def came(self, message: Frame) -> None:
        body = message.body
        if message.kind == "CLOSE_CONSUMER":
            if body.consumer_id == self._consumer:
                self._leave()
        elif message.kind == "ACTIVE_CONSUMER_CHANGE":
            if self._member is not None and body.consumer_id == self._consumer and body.is_active:
                self.subscription.activated(self._member)
        elif message.kind == "MESSAGE":
            member = self._member
            if member is None or body.consumer_id != self._consumer:
                return  # on its way when it was closed
            entry = body.message_id.entryId
            self._ledgers[entry] = body.message_id.ledgerId
            values = message.values
            self.subscription.delivered(member, entry, values, body.redelivery_count, bool(body.ack_set))
            self._consumed += len(values)
        else:
            super().came(message)
