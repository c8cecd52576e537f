"""The shuffle service with mutual TLS and ACLs, end to end: a certificate identifies a client."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.config import load
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.server import BrokerServer
from protocol.shuffle import writer_frames as w
from protocol.shuffle.errors import IO_EXCEPTION
from protocol.shuffle.writer_frames import WriterErrorCode
from tests import certificates
from tests.shuffle.harness import BLOCKING, DEADLINE_S, Client, new_id

Connect = Callable[[str], Client]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    files = certificates.server().write(tmp_path)
    config = load(
        data_dir=str(tmp_path / "data"),
        listeners=["kafka://127.0.0.1:0", "shuffle+ssl://127.0.0.1:0"],
        ssl_keystore_location=str(files.both),
        ssl_truststore_location=str(files.authority),
        ssl_client_auth="required",
        authorizer_class_name="acl",
    )
    server = BrokerServer(config)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connect(server: BrokerServer, tmp_path: Path) -> Iterator[Connect]:
    host, port = server.listeners["shuffle+ssl"].rsplit(":", 1)
    with ExitStack() as stack:

        def connect(name: str) -> Client:
            client = stack.enter_context(Client((host, int(port))))
            context = certificates.client_context(certificates.client(name), directory=tmp_path)
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            client.socket.settimeout(DEADLINE_S)
            return client

        yield connect


def acl(user: str, operation: Operation, owner: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(ResourceType.TOPIC, f"shuffle:{owner}", pattern, f"User:CN={user}", "*", operation, Permission.ALLOW)


def test_certificate_determines_writable_and_readable_partitions(server: BrokerServer, connect: Connect) -> None:
    authorizer = server.security.authorizer
    assert authorizer is not None
    rules = [
        acl("alice", Operation.ALL, "etl-", PatternType.PREFIXED),
        acl("bob", Operation.READ, "etl-daily"),
    ]
    assert authorizer.create(rules) == [None, None]
    alice, bob, carol = connect("alice"), connect("bob"), connect("carol")
    partition = new_id()
    alice.finish(alice.open(partition, 1, BLOCKING, owner="etl-daily").push(b"data"))
    assert bob.read_to_end(bob.request(partition))[0].payload == b"data"

    bob.send(w.encode_open_partition(bytes(15) + b"b", new_id(), 1, BLOCKING, -1, "etl-daily"))
    assert bob.find(w.WriterError).code == WriterErrorCode.NOT_AUTHORIZED
    assert bob.release(partition) is False
    assert [info.partition for info in bob.list()] == [partition]  # READ implies DESCRIBE
    assert carol.list() == ()
    carol.request(partition)
    assert carol.error().class_name == IO_EXCEPTION
    assert alice.release(partition) is True
