"""The clients, each in the simplest use it can be put to: what they do differently is in the tests of their own."""

import pytest

from tests.compat.clients.aio import Aiokafka
from tests.compat.clients.kafka_python import KafkaPython
from tests.compat.clients.kcat import Kcat
from tests.compat.clients.librdkafka import Librdkafka
from tests.compat.clients.node import Kafkajs, Platformatic
from tests.compat.clients.record import RECORDS, Client, Record

CLIENTS: list[Client] = [Librdkafka(), KafkaPython(), Aiokafka(), Kcat(), Kafkajs(), Platformatic()]

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def skip_if_missing(client: Client, codec: str = "none") -> None:
    reason = client.missing()
    if reason:
        pytest.skip(reason)
    if codec not in client.codecs:
        pytest.skip(f"{client.name} does not do {codec} here")


def writable(client: Client) -> list[Record]:
    return [record for record in RECORDS if client.can_write(record)]
