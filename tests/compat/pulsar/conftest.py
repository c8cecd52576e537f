"""One broker with all three protocols for the Pulsar clients; each test makes topics of its own."""

import logging
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.compat.pulsar.helpers import Admin
from tests.compat.served import Served
from tests.process.broker_process import BrokerProcess

NAMESPACES = ("public/default", "public/other")


@pytest.fixture(scope="package")
def pulsar_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with Served(
        tmp_path_factory.mktemp("pulsar"),
        f"pulsar_namespaces={','.join(NAMESPACES)}",
        listener="pulsar://127.0.0.1:0",
        more_listeners=["http://127.0.0.1:0", "kafka://127.0.0.1:0"],
    ) as broker:
        yield broker
        # Whatever the clients did, nothing of it was the broker's fault.
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture(scope="package")
def service_url(pulsar_broker: BrokerProcess) -> str:
    return f"pulsar://{pulsar_broker.addresses['pulsar']}"


@pytest.fixture(scope="package")
def web_url(pulsar_broker: BrokerProcess) -> str:
    return f"http://{pulsar_broker.addresses['http']}"


@pytest.fixture(scope="package")
def kafka_servers(pulsar_broker: BrokerProcess) -> str:
    return pulsar_broker.addresses["kafka"]


@pytest.fixture(scope="package")
def rest(web_url: str) -> Admin:
    return Admin(web_url)


@pytest.fixture
def connect(service_url: str) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients, each with connections of its own, and closes them in the end."""
    clients: list[pulsar.Client] = []

    def make(url: str = service_url, **options: object) -> pulsar.Client:
        options.setdefault("logger", quiet_logger())
        options.setdefault("operation_timeout_seconds", 20)
        clients.append(pulsar.Client(url, **options))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        try:
            client.close()
        except pulsar.PulsarException:
            pass  # the test has closed it


@pytest.fixture
def client(connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    return connect()


def quiet_logger() -> logging.Logger:
    """What the client tells goes to pytest, which shows it when the test fails."""
    return logging.getLogger("pulsar-client")
