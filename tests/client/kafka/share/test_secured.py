"""The share consumer with a listener that demands TLS and a login."""

import pytest

from broker.client import Broker, ShareConsumer
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.configs import GROUP, alter_configs
from broker.client.kafka.errors import AuthenticationError
from tests.client.kafka.logs import append
from tests.client.kafka.sasl_gate import SaslGate
from tests.client.kafka.test_config_security import CERTIFICATES, USERS, server_side

LIMIT_S = 60.0
SETTINGS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": USERS["alice"],
    "ssl.ca.location": str(CERTIFICATES / "ca.pem"),
}


def test_records_over_tls_need_a_login() -> None:
    with (
        SaslGate(USERS, server_side()) as gate,
        Broker(listeners=(f"kafka://127.0.0.1:0?advertised=localhost:{gate.port}",)) as running,
    ):
        gate.forward_to(running.server.listeners["kafka"])
        servers = f"localhost:{gate.port}"
        running.server.kafka.logs.create_topic("jobs", 1, {})
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": servers} | SETTINGS)) as cluster:
            changes = {"share.auto.offset.reset": "earliest"}
            assert alter_configs(cluster.routing, {(GROUP, "workers"): changes})[GROUP, "workers"].code == 0
        append(running, "jobs", [b"%d" % number for number in range(1000)])
        seen = []
        with ShareConsumer(servers, "workers", ["jobs"], settings=SETTINGS) as jobs:
            for record in jobs:
                seen.append(record.offset)
                if len(seen) == 1000:
                    break
        assert seen == list(range(1000))
        wrong = SETTINGS | {"sasl.password": "wrong"}
        with ShareConsumer(servers, "workers", ["jobs"], settings=wrong) as jobs:
            with pytest.raises(AuthenticationError, match="refuses 'alice'"):
                jobs.poll(LIMIT_S)
            assert "wrong" not in repr(jobs)
