"""What users import: a broker in a ``with`` block (and as a pytest fixture, see ``pytest_plugin``), and what writes and reads
result partitions.

from broker.client import Broker

with Broker() as broker:
    KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

Errors of the shuffle are in ``broker.client.errors``, channel selectors in ``broker.client.channel_selector``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.client.buffer_or_event import BufferOrEvent
    from broker.client.channel_selector import broadcast, custom, forward, hash_by_key, rebalance, rescale, round_robin
    from broker.client.checkpointed_input_gate import CheckpointedInputGate
    from broker.client.embedded import Broker
    from broker.client.errors import ShuffleError
    from broker.client.input_gate import InputGate
    from broker.client.local_channel import LocalExchange
    from broker.client.record_writer import RecordWriter
    from broker.client.shuffle_admin import ShuffleAdmin
    from broker.client.shuffle_writer import ShuffleWriter
    from broker.client.union_input_gate import UnionInputGate
    from protocol.shuffle.ids import ResultPartitionID

__all__ = [
    "Broker",
    "BufferOrEvent",
    "CheckpointedInputGate",
    "InputGate",
    "LocalExchange",
    "RecordWriter",
    "ResultPartitionID",
    "ShuffleAdmin",
    "ShuffleError",
    "ShuffleWriter",
    "UnionInputGate",
    "broadcast",
    "custom",
    "forward",
    "hash_by_key",
    "rebalance",
    "rescale",
    "round_robin",
]

# Imported at first use: pytest loads the plugin beside this file in every session, and most of them start no broker.
_WHERE = {
    "Broker": "broker.client.embedded",
    "BufferOrEvent": "broker.client.buffer_or_event",
    "CheckpointedInputGate": "broker.client.checkpointed_input_gate",
    "InputGate": "broker.client.input_gate",
    "LocalExchange": "broker.client.local_channel",
    "RecordWriter": "broker.client.record_writer",
    "ResultPartitionID": "protocol.shuffle.ids",
    "ShuffleAdmin": "broker.client.shuffle_admin",
    "ShuffleError": "broker.client.errors",
    "ShuffleWriter": "broker.client.shuffle_writer",
    "UnionInputGate": "broker.client.union_input_gate",
}
_WHERE |= dict.fromkeys(
    ["broadcast", "custom", "forward", "hash_by_key", "rebalance", "rescale", "round_robin"],
    "broker.client.channel_selector",
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
