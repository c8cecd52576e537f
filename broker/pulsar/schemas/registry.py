"""The schemas of all topics: the versions of each, from 0, in the catalogue.

A version is a document of kind "pulsar-schema" with the topic's id and the version's number as its key. So all partitions of a
topic share its schemas, and a topic that is made again under the same name has none of its predecessor's. A version is never
changed. Deleting a topic's schema adds a version with the mark ``deleted``, as in Pulsar; later schemas need not be compatible
with those before it.

Any thread. Writing may block and is serialised by ``_lock``, so that versions are numbered in the order in which they are
stored. Reading takes no lock: the list of a topic's versions is replaced as a whole.

The versions of a topic are bounded in number and bytes.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from broker.cluster.nodes import Nodes, changing
from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.pulsar.refusals import IncompatibleSchema
from broker.pulsar.schemas.compatibility import Schema, StoredSchema, Strategy, check, check_definition, identity
from broker.runtime.threads import Lock

log = get_logger("pulsar")

KIND: Final = "pulsar-schema"
VERSIONS_MAX: Final = 1_000
BYTES_MAX: Final = 8 * 1024 * 1024  # of a topic


class _Versions:
    """The versions of one topic. Immutable."""

    def __init__(self, stored: Sequence[StoredSchema], identities: Sequence[bytes]) -> None:
        self.stored = stored
        self.identities = identities
        first = max((place + 1 for place, version in enumerate(stored) if version.deleted), default=0)
        self.current = stored[first:]  # not deleted
        pairs = zip(self.current, identities[first:], strict=True)
        self.by_identity = {identity: version.version for version, identity in pairs}
        self.size = sum(len(version.schema.data) for version in stored)

    def and_one(self, one: StoredSchema) -> "_Versions":
        return _Versions([*self.stored, one], [*self.identities, identity(one.schema)])


_NO_VERSIONS: Final = _Versions((), ())


class SchemaRegistry:
    def __init__(self, catalogue: Catalogue, nodes: Nodes | None = None) -> None:
        """``nodes``: set if other nodes have partitions of the same topics."""
        self._nodes = nodes
        self._catalogue = catalogue
        self._topics: dict[UUID, _Versions] = {}
        self._lock = Lock()

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Read the catalogue, and remove the schemas of topics that no longer exist. Raises StorageError."""
        stored_by_topic: dict[UUID, list[StoredSchema]] = {}
        gone: list[tuple[str, str, bytes | None]] = []
        for key, body in self._catalogue.load_documents(KIND):
            topic_id = UUID(key.partition("/")[0])
            if exists(topic_id):
                stored_by_topic.setdefault(topic_id, []).append(decode(body))
            else:
                gone.append((KIND, key, None))
        if gone:
            self._catalogue.alter_documents(gone)
        for topic_id, stored in stored_by_topic.items():
            self._topics[topic_id] = _in_order(stored)

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            keys: dict[UUID, list[bytes]] = {}
            for key, body in self._catalogue.load_documents(KIND):
                keys.setdefault(UUID(key.partition("/")[0]), []).append(body)
            for topic_id, bodies in keys.items():
                if len(bodies) != len(self._of(topic_id).stored):  # versions are only added
                    self._topics[topic_id] = _in_order(list(map(decode, bodies)))

    # -- questions ----------------------------------------------------------------------------------------------------

    def latest(self, topic_id: UUID) -> StoredSchema | None:
        """None: the topic has no schema."""
        current = self._of(topic_id).current
        return current[-1] if current else None

    def get(self, topic_id: UUID, version: int) -> StoredSchema | None:
        """Also finds a version that was deleted later."""
        for stored in self._of(topic_id).stored:
            if stored.version == version and not stored.deleted:
                return stored
        return None

    def all(self, topic_id: UUID) -> Sequence[StoredSchema]:
        """The versions that are not deleted, the oldest first."""
        return self._of(topic_id).current

    def find(self, topic_id: UUID, schema: Schema) -> int | None:
        """The version that has this schema; None if there is none."""
        return self._of(topic_id).by_identity.get(identity(schema))

    def check(self, topic_id: UUID, schema: Schema, strategy: Strategy) -> None:
        """Raises IncompatibleSchema if ``put`` would refuse the schema."""
        check_definition(schema)
        check(schema, [stored.schema for stored in reversed(self._of(topic_id).current)], strategy)

    def check_consumer(self, topic_id: UUID, schema: Schema, strategy: Strategy) -> None:
        """Raises IncompatibleSchema if a consumer with this schema cannot read the topic's messages."""
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        current = self._of(topic_id).current
        if not current:
            raise IncompatibleSchema("Topic does not have schema to check")
        check_definition(schema)
        # As in Pulsar: except with the strategies that compare all versions, a consumer has to read the latest.
        if (
            not strategy.transitive and strategy is not Strategy.ALWAYS_INCOMPATIBLE
        ) or strategy is Strategy.FORWARD_TRANSITIVE:
            strategy = Strategy.BACKWARD
        check(schema, [stored.schema for stored in reversed(current)], strategy)

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------------

    def put(self, topic_id: UUID, schema: Schema, strategy: Strategy, now_ms: int, user: str = "") -> int:
        """Add the schema unless the topic has it already, and return its version. Raises IncompatibleSchema."""
        version = self.find(topic_id, schema)
        if version is not None:
            return version
        with changing(self._nodes, self.reload), self._lock:
            version = self.find(topic_id, schema)
            if version is not None:
                return version
            self.check(topic_id, schema, strategy)
            versions = self._of(topic_id)
            if len(versions.stored) >= VERSIONS_MAX or versions.size + len(schema.data) > BYTES_MAX:
                raise IncompatibleSchema(
                    f"The topic has {len(versions.stored)} versions of its schema, and may have {VERSIONS_MAX}, "
                    f"and {BYTES_MAX} bytes of them."
                )
            return self._append(topic_id, schema, now_ms, user)

    def delete(self, topic_id: UUID, now_ms: int, user: str = "") -> int | None:
        """Delete the topic's schema. Returns the version that marks this; None: the topic had no schema."""
        with changing(self._nodes, self.reload), self._lock:
            if not self._of(topic_id).current:
                return None
            return self._append(topic_id, Schema(0, b""), now_ms, user, deleted=True)

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Does not raise: if removing fails now, the next start removes the schemas."""
        with self._lock:
            versions = self._topics.pop(topic_id, None)
            if versions is not None:
                try:
                    self._catalogue.alter_documents(
                        [(KIND, _key(topic_id, version.version), None) for version in versions.stored]
                    )
                except StorageError as error:
                    log.warning("schemas_not_removed", topic_id=str(topic_id), error=str(error))

    def _append(self, topic_id: UUID, schema: Schema, now_ms: int, user: str, *, deleted: bool = False) -> int:
        versions = self._of(topic_id)
        version = versions.stored[-1].version + 1 if versions.stored else 0
        stored = StoredSchema(version, schema, now_ms, user, deleted)
        self._catalogue.alter_documents([(KIND, _key(topic_id, version), encode(stored))])
        self._topics[topic_id] = versions.and_one(stored)
        return version

    def _of(self, topic_id: UUID) -> _Versions:
        return self._topics.get(topic_id, _NO_VERSIONS)


def _in_order(stored: list[StoredSchema]) -> _Versions:
    stored.sort(key=lambda version: version.version)
    return _Versions(stored, [identity(version.schema) for version in stored])


def _key(topic_id: UUID, version: int) -> str:
    return f"{topic_id}/{version}"


def encode(one: StoredSchema) -> bytes:
    """A line of JSON, then the definition unchanged."""
    schema = one.schema
    head = {
        "format": 1,
        "version": one.version,
        "type": schema.type,
        "name": schema.name,
        "properties": dict(schema.properties),
        "written": one.written_ms,
        "user": one.user,
        "deleted": one.deleted,
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + schema.data


def decode(body: bytes) -> StoredSchema:
    """Raises StorageError."""
    line, _, data = body.partition(b"\n")
    try:
        head = json.loads(line)
        if head["format"] != 1:
            raise ValueError("format")
        schema = Schema(head["type"], data, head["name"], head["properties"])
        return StoredSchema(head["version"], schema, head["written"], head["user"], head["deleted"])
    except (ValueError, KeyError, TypeError):
        raise StorageError("The catalogue has a schema that cannot be read.") from None
