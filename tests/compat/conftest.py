"""One broker, served as users serve it, for all clients; each test makes topics of its own.

With ``BROKER_NODES=3`` in the environment (``make compat-nodes``) it is a cluster of three nodes on this machine.
"""

import gc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.librdkafka import settings
from tests.compat.served import Served

# Short, so that a member that crashes is noticed soon; everything else is as a newcomer has it.
SETTINGS = ("group_min_session_timeout_ms=500",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Clients leave sockets behind when a broker goes away under them; that is their affair.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="module", autouse=True)
def _clients_are_collected() -> Iterator[None]:
    """What they leave behind is found here, and not in a test that has nothing to do with it."""
    yield
    gc.collect()


@pytest.fixture(scope="package")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("compat"), *SETTINGS) as broker:
        yield broker
        # Whatever the clients did, nothing of it was the broker's fault.
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture(scope="package")
def servers(broker_process: Served) -> str:
    """What clients call ``bootstrap.servers``."""
    return broker_process.address


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that nothing else has: for a topic or a group that does not exist yet."""
    return new_name(request.node.name)


def new_name(prefix: str = "t") -> str:
    plain = "".join(letter if letter.isalnum() else "-" for letter in prefix.removeprefix("test_"))
    # A letter before the digits: Pulsar's names of partitions end with "-partition-" and a number, and so do some tests' names.
    return f"{plain[:60]}-t{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def admin(servers: str) -> AdminClient:
    return AdminClient(settings(servers))


@pytest.fixture(scope="module")
def make_topic(admin: AdminClient) -> Callable[..., str]:
    """Makes a topic and gives its name: ``make_topic(partitions=3, **{"cleanup.policy": "compact"})``."""

    def make(name: str | None = None, *, partitions: int = 1, **configs: str) -> str:
        name = name or new_name()
        admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(30)
        return name

    return make


@pytest.fixture
def topic(name: str, make_topic: Callable[..., str]) -> str:
    """A topic of one partition that no other test uses."""
    return make_topic(name)
