"""The names of Pulsar's topics, and their names among Kafka's topics.

    persistent://TENANT/NAMESPACE/LOCAL[-partition-N]        also TENANT/NAMESPACE/LOCAL, and LOCAL alone for public/default

A topic of ``public/default`` with a local name that is legal in Kafka has the same name there. In Kafka every other topic has the
name

    pulsar.TENANT.NAMESPACE.LOCAL

where each part keeps its letters, digits and ``-``, and every byte of another character (in UTF-8) becomes ``__`` and two
hexadecimal digits: ``persistent://shop/eu/paid_orders`` is Kafka's ``pulsar.shop.eu.paid__5forders``.

Conversely, a name of that form is the topic of its parts, and every other name is a topic of ``public/default``. So each topic
has exactly one name on either side, and no two topics share a name. (A topic of ``public/default`` with a name of that form in
Pulsar is written in the long form.) Kafka treats ``.`` and ``_`` as equal when it compares the names of topics; two names in the
long form differ even then.

Pure.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

import attrs

from broker.errors import Refusal
from broker.pulsar.refusals import InvalidTopicName
from broker.storage import refusals as storage
from broker.storage.config import check_name
from protocol.frames import crc32c

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
PUBLIC_TENANT = "public"
DEFAULT_NAMESPACE = "default"

_PREFIX = "pulsar."
_PART = r"(?:[A-Za-z0-9-]|__[0-9a-f]{2})+"
_LONG_FORM = re.compile(rf"pulsar\.({_PART})\.({_PART})\.({_PART})")
_ESCAPED = re.compile(rb"__([0-9a-f]{2})")
_TO_ESCAPE = re.compile(rb"[^A-Za-z0-9-]")
# Pulsar's NamedEntity: the characters of the names of tenants and namespaces.
_ENTITY = re.compile(r"[-=:.\w]{1,200}", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
# An escaped local name must also fit into the name of a directory, which is checked when the topic is made.
_LONGEST_LOCAL = 1000


@attrs.frozen
class TopicName:
    """A topic, or a partition of it (``partition`` >= 0). ``local`` does not include the number of the partition."""

    tenant: str
    namespace_name: str
    local: str
    partition: int = -1
    domain: str = PERSISTENT
    namespace: str = attrs.field(init=False, eq=False, repr=False)

    @namespace.default
    def _namespace(self) -> str:
        return f"{self.tenant}/{self.namespace_name}"

    @property
    def whole(self) -> "TopicName":
        """The topic of this partition."""
        return self if self.partition < 0 else attrs.evolve(self, partition=-1)

    @property
    def as_local(self) -> "TopicName":
        """The unpartitioned topic with the same name as this partition."""
        return (
            self
            if self.partition < 0
            else attrs.evolve(self, local=f"{self.local}-partition-{self.partition}", partition=-1)
        )

    @property
    def persistent(self) -> bool:
        return self.domain == PERSISTENT

    def of_partition(self, number: int) -> "TopicName":
        return attrs.evolve(self, partition=number)

    def partitions(self, count: int) -> "list[TopicName]":
        """The names of its partitions; its own if it is not partitioned (0)."""
        return [self.of_partition(number) for number in range(count)] if count else [self]

    def __str__(self) -> str:
        suffix = f"-partition-{self.partition}" if self.partition >= 0 else ""
        return f"{self.domain}://{self.tenant}/{self.namespace_name}/{self.local}{suffix}"


def check_namespace(text: str) -> str:
    """Return ``text``, a name tenant/namespace. Raises InvalidTopicName if it is not a legal name of a namespace."""
    tenant, slash, name = text.partition("/")
    if not slash or not _ENTITY.fullmatch(tenant) or not _ENTITY.fullmatch(name):
        raise InvalidTopicName(f"Invalid namespace: {text[:300]!r}; write it as tenant/namespace.")
    return text


@lru_cache(maxsize=10_000)
def parse_topic(text: str) -> TopicName:
    """A topic as clients name it. Raises InvalidTopicName."""
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
        if "/" not in text:
            rest = f"{PUBLIC_TENANT}/{DEFAULT_NAMESPACE}/{text}"
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidTopicName(f"Invalid topic domain: {domain[:100]!r}.")
    parts = rest.split("/", 2)
    if len(parts) != 3 or not parts[2] or len(parts[2]) > _LONGEST_LOCAL:
        raise InvalidTopicName(f"Invalid topic name: {text[:300]!r}; write it as persistent://tenant/namespace/topic.")
    tenant, namespace, local = parts
    check_namespace(f"{tenant}/{namespace}")
    match = _PARTITION.fullmatch(local)
    if match is None:
        return TopicName(tenant, namespace, local, -1, domain)
    return TopicName(tenant, namespace, match[1], int(match[2]), domain)


def kafka_name(name: TopicName) -> str:
    """The name of the topic (of this partition) in Kafka. An illegal name is refused when the topic is created."""
    local = name.local
    is_default = (name.tenant, name.namespace_name) == (PUBLIC_TENANT, DEFAULT_NAMESPACE)
    if is_default and name.persistent and _has_short_form(local):
        return local
    return f"{_PREFIX}{_escape(name.tenant)}.{_escape(name.namespace_name)}.{_escape(local)}"


@lru_cache(maxsize=10_000)
def pulsar_name(topic: str) -> TopicName:
    """The topic of Pulsar with this name in Kafka."""
    parts = _parts(topic) if topic.startswith(_PREFIX) else None
    if parts is not None:
        return TopicName(*parts)
    return TopicName(PUBLIC_TENANT, DEFAULT_NAMESPACE, topic)


@lru_cache(maxsize=10_000)
def tenant_of(topic: str) -> str:
    """The tenant of the topic with this name in Kafka."""
    return pulsar_name(topic).tenant


def namespace_prefix(namespace: str) -> str:
    """The prefix of the long names of all topics of a namespace, and of no others."""
    tenant, _, name = namespace.partition("/")
    return f"{_PREFIX}{_escape(tenant)}.{_escape(name)}."


_DEFAULT_PREFIX = f"{_PREFIX}{PUBLIC_TENANT}.{DEFAULT_NAMESPACE}."


@lru_cache(maxsize=10_000)
def long_name(topic: str) -> str | None:
    """The long form of the name of a topic of ``public/default`` that has the short form in Kafka. None for all others."""
    if topic.startswith(_PREFIX) and _parts(topic) is not None:
        return None
    return _DEFAULT_PREFIX + _escape(topic)


def subscription_name(topic: str, subscription: str) -> str:
    """A name for checking rights on this subscription of this topic only; other topics may have subscriptions with the same name.
    ``topic``: the name in Kafka. No other topic's subscriptions have this prefix, because names in Kafka contain no slash."""
    return f"{subscriptions_prefix(topic)}{subscription}"


def subscriptions_prefix(topic: str) -> str:
    """The prefix of the names of all subscriptions of a topic, and of no others."""
    return f"{long_name(topic) or topic}/"


def topics_hash(topics: Iterable[str]) -> str:
    """The CRC-32C of the sorted names, as Pulsar computes it."""
    in_order = sorted(topics)
    if not all(map(str.isascii, in_order)):
        in_order.sort(key=lambda topic: topic.encode("utf-16-be", "surrogatepass"))  # Java's order
    return crc32c(",".join(in_order).encode("utf-8", "surrogatepass")).to_bytes(4, "little").hex()


def check_legal(topic: str) -> None:
    """Raises InvalidTopicName if the name is not legal in Kafka."""
    try:
        check_name(topic)
    except storage.InvalidTopicName:
        raise InvalidTopicName(
            f"The name is too long: a topic's name in Kafka, here {topic[:300]!r}, has at most 249 characters."
        ) from None


def _escape(part: str) -> str:
    return _TO_ESCAPE.sub(lambda match: b"__%02x" % match[0][0], part.encode("utf-8", "surrogatepass")).decode("ascii")


def _unescape(part: str) -> str:
    """Raises UnicodeDecodeError."""
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), part.encode()).decode("utf-8")


def _parts(topic: str) -> tuple[str, str, str] | None:
    """Tenant, namespace and local name of a name in the long form; None if ``kafka_name`` never returns it."""
    match = _LONG_FORM.fullmatch(topic)
    if match is None:
        return None
    try:
        tenant, namespace, local = (_unescape(part) for part in match.groups())
    except UnicodeDecodeError:
        return None
    # Not valid: unnecessary escapes, names that no client can use, and names that have the short form.
    if any(_escape(text) != part for text, part in zip((tenant, namespace, local), match.groups(), strict=True)):
        return None
    if not _ENTITY.fullmatch(tenant) or not _ENTITY.fullmatch(namespace):
        return None
    if (tenant, namespace) == (PUBLIC_TENANT, DEFAULT_NAMESPACE) and _has_short_form(local):
        return None
    return tenant, namespace, local


def _has_short_form(local: str) -> bool:
    """Whether a topic of ``public/default`` with this local name has the same name in Kafka."""
    try:
        check_name(local)
    except Refusal:
        return False
    return _parts(local) is None
