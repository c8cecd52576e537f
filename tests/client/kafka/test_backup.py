"""The client of `broker backup`, with a broker that allows one new backup per second."""

from pathlib import Path

import pytest

from broker.client import Broker
from broker.client.kafka import ClientConfig
from broker.client.kafka.admin.cluster import BackupClient
from broker.client.kafka.errors import BrokerAnswerError
from broker.client.kafka.routing import Routing
from broker.runtime.clock import SystemClock


def test_backups_in_turn_wait_and_overlapping_are_refused() -> None:
    with Broker() as broker:
        config = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})
        routing = Routing(config, SystemClock())
        client = BackupClient(routing)
        for _ in range(2):
            pinned = client.begin()
            assert (Path(pinned.directory) / "plan.json").is_file()
            client.renew(pinned)
            with pytest.raises(BrokerAnswerError, match="Another backup is being made"):
                client.begin()
            client.end(pinned)
        routing.close()
