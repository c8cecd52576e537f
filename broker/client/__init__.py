"""What users import: a broker in a ``with`` block (and as a pytest fixture, see ``pytest_plugin``).

from broker.client import Broker

with Broker() as broker:
    KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.client.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    # Imported at first use: pytest loads the plugin beside this file in every session, and most of them start no broker.
    if name == "Broker":
        from broker.client.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
