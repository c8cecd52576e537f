"""A broker with Pulsar under attack, and checks that attackers leave nothing behind."""

from typing import Any

import attrs

from tests.faults.raw import Faults
from tests.raw_pulsar import SHARED, RawPulsar, ids_of, topic

LISTENERS = ("kafka://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")


@attrs.define(eq=False)
class PulsarFaults:
    faults: Faults
    _raws: list[RawPulsar] = attrs.Factory(list)
    _healthy: str = attrs.Factory(topic)
    _served: int = 0

    def connect_pulsar(self, **options: Any) -> RawPulsar:
        self._raws.append(RawPulsar(self.faults.broker.address("pulsar"), **options))
        return self._raws[-1]

    def serves_pulsar(self) -> bool:
        """Another client, of both protocols: it sends messages, receives and acknowledges them."""
        client = self.connect_pulsar()
        value = b"value %d" % self._served
        self._served += 1
        client.produce_to(self._healthy).subscribe_to(self._healthy, "healthy", SHARED)
        client.publish(value)
        client.flow(10)
        [message] = client.messages(1)
        assert message.payload == value
        assert client.acknowledge(ids_of([message])) == ""
        client.close()
        return self.faults.serves()

    def close(self) -> None:
        for raw in self._raws:
            raw.close()
