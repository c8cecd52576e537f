"""Each client with its own security settings, in the simplest use: make a topic, write to it, read it with a group.

``come_in`` returns what was read. ``refused`` returns what the client says when the broker does not let it in.
"""

import asyncio
import ssl
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import aiokafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients import aio, kafka_python, kcat, librdkafka
from tests.compat.clients.node import Kafkajs, Platformatic, _Node
from tests.compat.clients.record import Record
from tests.compat.security.access import Access

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

T = TypeVar("T")
VALUES = [b"one", b"two", b"three"]
# How long a client that is refused may go on trying.
_REFUSED_S = 30.0


class Guest(Protocol):
    name: str

    def missing(self, access: Access) -> str | None:
        """Why it cannot come in this way here; None: it can."""

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]: ...

    def refused(self, servers: str, access: Access) -> str: ...


# -- confluent-kafka ----------------------------------------------------------------------------------------------------


def librdkafka_settings(servers: str, access: Access) -> dict[str, Any]:
    """By Kafka's names, as confluent-kafka and kcat take them."""
    settings: dict[str, Any] = {**librdkafka.settings(servers), "security.protocol": access.protocol}
    if access.mechanism:
        settings["sasl.mechanism"] = access.mechanism
    if access.user:
        settings |= {"sasl.username": access.user, "sasl.password": access.password}
    if access.trust:
        settings["ssl.ca.location"] = str(access.trust)
    if access.certificate:
        settings |= {"ssl.certificate.location": str(access.certificate), "ssl.key.location": str(access.key)}
    return settings


class ConfluentGuest:
    name = "confluent-kafka"

    def missing(self, access: Access) -> str | None:
        return None

    def _settings(self, servers: str, access: Access, **more: Any) -> dict[str, Any]:
        settings = librdkafka_settings(servers, access) | {key.replace("_", "."): value for key, value in more.items()}
        if access.token:
            settings["oauth_cb"] = lambda _: (access.token, time.time() + 3600)
        return settings

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        admin = AdminClient(self._settings(servers, access))
        admin.poll(0)  # librdkafka asks for a token from here
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        producer = Producer(self._settings(servers, access))
        for value in VALUES:
            producer.produce(topic, value)
        assert producer.flush(30) == 0
        consumer = Consumer(self._settings(servers, access, group_id=topic, auto_offset_reset="earliest"))
        consumer.subscribe([topic])
        try:
            values = [message.value() or b"" for message in librdkafka.consume(consumer, len(VALUES))]
            consumer.commit(asynchronous=False)
            return values
        finally:
            consumer.close()

    def refused(self, servers: str, access: Access) -> str:
        said: list[str] = []
        settings = self._settings(servers, access) | {"error_cb": lambda error: said.append(str(error))}
        admin = AdminClient(settings)
        deadline = time.monotonic() + _REFUSED_S
        while not said and time.monotonic() < deadline:
            admin.poll(0.1)
        try:
            admin.list_topics(timeout=1)
        except KafkaException as error:
            said.append(str(error))
        else:
            raise AssertionError("it was let in")
        return " ".join(said)


# -- kafka-python ----------------------------------------------------------------------------------------------------


def _login_settings(servers: str, access: Access, token_provider: Callable[[str], object]) -> dict[str, Any]:
    """As kafka-python and aiokafka call them."""
    settings: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": access.protocol}
    if access.logs_in:
        settings["sasl_mechanism"] = access.mechanism
    if access.user:
        settings |= {"sasl_plain_username": access.user, "sasl_plain_password": access.password}
    if access.token:
        settings["sasl_oauth_token_provider"] = token_provider(access.token)
    return settings


class KafkaPythonGuest:
    name = "kafka-python"

    def missing(self, access: Access) -> str | None:
        return None

    def _settings(self, servers: str, access: Access) -> dict[str, Any]:
        settings = _login_settings(servers, access, _KafkaPythonToken)
        if access.trust:
            settings["ssl_cafile"] = str(access.trust)
        if access.certificate:
            settings |= {"ssl_certfile": str(access.certificate), "ssl_keyfile": str(access.key)}
        return settings

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        settings = self._settings(servers, access)
        admin = kafka.KafkaAdminClient(**settings)
        try:
            admin.create_topics([kafka.admin.NewTopic(topic, 1, 1)])
        finally:
            admin.close()
        producer = kafka.KafkaProducer(**settings)
        try:
            for future in [producer.send(topic, value) for value in VALUES]:
                future.get(30)
        finally:
            producer.close()
        consumer = kafka_python.join(topic, **settings, group_id=topic, auto_offset_reset="earliest")
        try:
            values = [record.value for record in kafka_python.consume(consumer, len(VALUES))]
            consumer.commit()
            return values
        finally:
            consumer.close()

    def refused(self, servers: str, access: Access) -> str:
        try:
            kafka.KafkaAdminClient(**self._settings(servers, access), bootstrap_timeout_ms=3000).close()
        except Exception as error:
            return repr(error)
        raise AssertionError("it was let in")


class _KafkaPythonToken(KafkaPythonTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return {}


# -- aiokafka ----------------------------------------------------------------------------------------------------


class AiokafkaGuest:
    name = "aiokafka"

    def missing(self, access: Access) -> str | None:
        return None

    def _settings(self, servers: str, access: Access) -> dict[str, Any]:
        settings = _login_settings(servers, access, _AioToken)
        if access.encrypted:
            context: ssl.SSLContext = create_ssl_context(
                cafile=access.trust and str(access.trust),
                certfile=access.certificate and str(access.certificate),
                keyfile=access.key and str(access.key),
            )
            settings["ssl_context"] = context
        return settings

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        async def come_in() -> list[bytes]:
            settings = self._settings(servers, access)
            admin = AIOKafkaAdminClient(**settings)
            await admin.start()
            try:
                await admin.create_topics([AioTopic(topic, 1, 1)])
            finally:
                await admin.close()
            async with aiokafka.AIOKafkaProducer(**settings) as producer:
                for value in VALUES:
                    await producer.send_and_wait(topic, value)
            consumer = aiokafka.AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
            async with consumer:
                values = [record.value for record in await aio.consume(consumer, len(VALUES))]
                await consumer.commit()
                return values

        return asyncio.run(come_in())

    def refused(self, servers: str, access: Access) -> str:
        async def refused() -> str:
            admin = AIOKafkaAdminClient(**self._settings(servers, access), request_timeout_ms=3000)
            try:
                await admin.start()
            except Exception as error:
                return repr(error)
            finally:
                await admin.close()
            raise AssertionError("it was let in")

        return asyncio.run(refused())


class _AioToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


# -- kcat ----------------------------------------------------------------------------------------------------


class KcatGuest:
    name = "kcat"

    def missing(self, access: Access) -> str | None:
        if access.token:
            return "kcat gets its tokens from a server only"
        return kcat.Kcat().missing()

    def _options(self, access: Access) -> list[str]:
        settings = librdkafka_settings("", access)
        del settings["bootstrap.servers"], settings["log_level"]
        return [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        options = self._options(access)
        kcat.run(servers, *options, "-P", "-t", topic, stdin=b"\n".join(VALUES))
        count = str(len(VALUES))
        read = ["-G", topic, "-c", count, "-X", "auto.offset.reset=earliest", topic]
        return kcat.run(servers, *options, *read).splitlines()

    def refused(self, servers: str, access: Access) -> str:
        return kcat.run(servers, *self._options(access), "-L", "-m", "3", fails=True).decode()


# -- Node ----------------------------------------------------------------------------------------------------


class NodeGuest:
    def __init__(self, client: _Node) -> None:
        self._client = client
        self.name = client.name

    def missing(self, access: Access) -> str | None:
        return self._client.missing()

    def _security(self, access: Access) -> dict[str, Any]:
        def text(path: Any) -> str | None:
            return None if path is None else path.read_text()

        security: dict[str, Any] = {}
        if access.encrypted:
            files = {"ca": text(access.trust), "cert": text(access.certificate), "key": text(access.key)}
            security["tls"] = {name: pem for name, pem in files.items() if pem is not None}
        if access.logs_in:
            security["sasl"] = {
                "mechanism": access.mechanism,
                "username": access.user,
                "password": access.password,
                "token": access.token,
            }
        return security

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        security = self._security(access)
        client = self._client
        records = client.encoded([Record(None, value) for value in VALUES])
        client.run("create", servers=servers, security=security, topic=topic)
        plain: dict[str, Any] = {"servers": servers, "security": security, "topic": topic}
        client.run("produce", **plain, partition=0, records=records, codec="none", acks=-1, idempotent=False)
        found = client.run("consume", **plain, count=len(VALUES), group=topic)
        return [client.decoded(record["value"]) or b"" for record in found]

    def refused(self, servers: str, access: Access) -> str:
        try:
            self._client.run("create", servers=servers, security=self._security(access), topic="refused")
        except AssertionError as error:
            return str(error)
        raise AssertionError("it was let in")


# -- our own ------------------------------------------------------------------------------------------------------


class BrokerCommand:
    """`broker topics`, `produce` and `consume`, with a properties file as Java's tools take it."""

    name = "broker-command"

    def missing(self, access: Access) -> str | None:
        return None

    def _run(
        self, servers: str, access: Access, *arguments: str, stdin: bytes = b""
    ) -> "subprocess.CompletedProcess[bytes]":
        settings = {"security.protocol": access.protocol, "sasl.mechanism": access.mechanism}
        if access.user:
            settings |= {"sasl.username": access.user, "sasl.password": access.password}
        if access.token:
            settings["sasl.oauthbearer.token"] = access.token
        if access.trust:
            settings["ssl.ca.location"] = str(access.trust)
        if access.certificate:
            settings |= {"ssl.certificate.location": str(access.certificate), "ssl.key.location": str(access.key)}
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as properties:
            properties.write("".join(f"{name}={value}\n" for name, value in settings.items() if value))
            properties.flush()
            command = [sys.executable, "-m", "broker", *arguments, "-b", servers, "--client-config", properties.name]
            return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

    def come_in(self, servers: str, access: Access, topic: str) -> list[bytes]:
        for arguments, stdin in (
            (["topics", "create", topic], b""),
            (["produce", topic], b"\n".join(VALUES) + b"\n"),
            (["consume", topic, "--group", topic, "--max-messages", str(len(VALUES))], b""),
        ):
            result = self._run(servers, access, *arguments, stdin=stdin)
            assert result.returncode == 0, result.stderr.decode()
        return result.stdout.splitlines()

    def refused(self, servers: str, access: Access) -> str:
        result = self._run(servers, access, "topics", "list")
        assert result.returncode != 0, "it was let in"
        assert b"Traceback" not in result.stderr
        return result.stderr.decode()


GUESTS: list[Guest] = [
    BrokerCommand(),
    ConfluentGuest(),
    KafkaPythonGuest(),
    AiokafkaGuest(),
    KcatGuest(),
    NodeGuest(Kafkajs()),
    NodeGuest(Platformatic()),
]


def each(way: Access, check: Callable[[Guest], T]) -> dict[str, T]:
    """What came of this for each guest that can come this way, by name: all at the same time, because they mostly wait. Raises
    an ExceptionGroup of what failed, each with the guest's name."""

    def checked(guest: Guest) -> T | Exception:
        try:
            return check(guest)
        except Exception as error:
            error.add_note(f"the client was {guest.name}")
            return error

    guests = [guest for guest in GUESTS if not guest.missing(way)]
    with ThreadPoolExecutor(len(guests)) as pool:
        results = dict(zip((guest.name for guest in guests), pool.map(checked, guests), strict=True))
    if failed := [result for result in results.values() if isinstance(result, Exception)]:
        raise ExceptionGroup(f"{len(failed)} of {len(guests)} clients", failed)
    return results  # type: ignore[return-value]
