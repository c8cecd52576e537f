"""The classes that users import: a broker in a ``with`` block (and as a pytest fixture, see ``pytest_plugin``),
consumers of share groups, and the writers and gates of the shuffle.

from broker.client import Broker

with Broker() as broker:
    KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

``ShuffleError`` is the base of all errors of the shuffle; its subclasses are in ``broker.client.shuffle.errors``. The classes of
the channel selectors are in ``broker.client.shuffle.writing.channel_selector``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.client.broker_calls import Record
    from broker.client.embedded import Broker
    from broker.client.kafka.share.async_share_consumer import AsyncShareConsumer
    from broker.client.kafka.share.record import AcknowledgementError, ShareRecord
    from broker.client.kafka.share.share_consumer import ShareConsumer
    from broker.client.process_broker import ProcessBroker
    from broker.client.shuffle.admin import ShuffleAdmin
    from broker.client.shuffle.errors import ShuffleError
    from broker.client.shuffle.local_exchange import LocalExchange
    from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun
    from broker.client.shuffle.reading.checkpointed_input_gate import CheckpointedInputGate
    from broker.client.shuffle.reading.input_gate import InputGate, UnionInputGate
    from broker.client.shuffle.writing.channel_selector import (
        broadcast,
        custom,
        forward,
        hash_by_key,
        rebalance,
        rescale,
        round_robin,
    )
    from broker.client.shuffle.writing.record_writer import RecordWriter
    from broker.client.shuffle.writing.shuffle_writer import ShuffleWriter
    from protocol.shuffle.ids import ResultPartitionID

__all__ = [
    "AcknowledgementError",
    "AsyncShareConsumer",
    "Broker",
    "BufferOrEvent",
    "BufferRun",
    "CheckpointedInputGate",
    "InputGate",
    "LocalExchange",
    "ProcessBroker",
    "Record",
    "RecordWriter",
    "ResultPartitionID",
    "ShareConsumer",
    "ShareRecord",
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

# Imported at first use, so that a program that only reads does not load the server.
_WHERE = {
    "AcknowledgementError": "broker.client.kafka.share.record",
    "AsyncShareConsumer": "broker.client.kafka.share.async_share_consumer",
    "Broker": "broker.client.embedded",
    "BufferOrEvent": "broker.client.shuffle.reading.buffer_or_event",
    "BufferRun": "broker.client.shuffle.reading.buffer_or_event",
    "CheckpointedInputGate": "broker.client.shuffle.reading.checkpointed_input_gate",
    "InputGate": "broker.client.shuffle.reading.input_gate",
    "LocalExchange": "broker.client.shuffle.local_exchange",
    "ProcessBroker": "broker.client.process_broker",
    "Record": "broker.server.contents",
    "RecordWriter": "broker.client.shuffle.writing.record_writer",
    "ResultPartitionID": "protocol.shuffle.ids",
    "ShareConsumer": "broker.client.kafka.share.share_consumer",
    "ShareRecord": "broker.client.kafka.share.record",
    "ShuffleAdmin": "broker.client.shuffle.admin",
    "ShuffleError": "broker.client.shuffle.errors",
    "ShuffleWriter": "broker.client.shuffle.writing.shuffle_writer",
    "UnionInputGate": "broker.client.shuffle.reading.input_gate",
}
_WHERE |= dict.fromkeys(
    ["broadcast", "custom", "forward", "hash_by_key", "rebalance", "rescale", "round_robin"],
    "broker.client.shuffle.writing.channel_selector",
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
