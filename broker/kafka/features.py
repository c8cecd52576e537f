"""The features of the cluster (KIP-584): the levels of each that this broker supports, and the finalized level.

A feature makes clients use newer forms of the protocol. Clients read the levels from ApiVersions when they connect; an operator
changes them with UpdateFeatures (``kafka-features.sh``), or limits them with the setting ``feature_max_levels``.

``FEATURES`` is the table of Kafka's features that have a meaning here. Features of a cluster's controllers are left out, and
clients take a missing feature for level 0: ``metadata.version`` and ``kraft.version`` (the broker has no metadata log),
``eligible.leader.replicas.version`` (it has no replicas), ``streams.version`` (it has no Streams groups). Our own features
(``reactor.*``) come from the APIs that have one; they are supported and never finalized.

Unless an operator has chosen a level, the table's counts, so a newer broker raises it by itself. The chosen levels are a document
of the catalogue, together with the levels that clients were last told and their epoch. Clients ignore levels whose epoch is not
higher than the epoch they know, so the epoch grows with every change, also with a change that a restart makes.

Any thread may read; a change waits for the catalogue.
"""

import json
from collections.abc import Iterable, Mapping

import attrs

from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.runtime.threads import Lock
from protocol.kafka.messages import api_versions

GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
TRANSACTION_VERSION = "transaction.version"

KIND = "features"
_KEY = ""


@attrs.frozen
class Feature:
    """Levels from ``lowest`` to ``highest`` are supported; ``usual`` is finalized unless an operator has chosen another level."""

    name: str
    lowest: int
    highest: int
    usual: int


FEATURES = (
    Feature(GROUP_VERSION, 0, 1, 1),  # 1: KIP-848's consumer groups
    Feature(SHARE_VERSION, 0, 1, 1),  # 1: share groups (KIP-932)
    # 1: Kafka stores transactions in another format, which has no meaning here. 2: KIP-890.
    Feature(TRANSACTION_VERSION, 0, 2, 2),
)


class Features:
    """``told`` is sent by ApiVersions; each change replaces it as a whole."""

    told: api_versions.Features

    def __init__(
        self,
        catalogue: Catalogue,
        max_levels: Mapping[str, int],
        own: Mapping[str, tuple[int, int]],
        features: Iterable[Feature] = FEATURES,
    ) -> None:
        """``own``: this project's features with their levels. Raises ConfigError for an invalid ``max_levels``."""
        self._catalogue = catalogue
        self._features = {each.name: each for each in features}
        for name, level in max_levels.items():
            if name not in self._features:
                raise ConfigError(
                    f"Name one of the features {', '.join(self._features)} in feature_max_levels: {name[:100]!r} is none."
                )
            feature = self._features[name]
            if not feature.lowest <= level <= feature.highest:
                raise ConfigError(
                    f"Set {name} in feature_max_levels to a level from {feature.lowest} to {feature.highest}."
                )
            self._features[name] = attrs.evolve(feature, highest=level)
        # The levels that an operator has chosen. Levels that this broker does not support are kept for another broker.
        self._chosen: dict[str, int] = {}
        self._lock = Lock()  # for changes
        supported = {each.name: (each.lowest, each.highest) for each in self._features.values()}
        self.told = api_versions.Features({**supported, **own}, self._levels(self._chosen), -1)

    def open(self) -> None:
        """Load the chosen levels. Raises StorageError."""
        epoch, told = 0, None
        for _, body in self._catalogue.load_documents(KIND):
            document = json.loads(body)
            epoch, told, self._chosen = document["epoch"], document["told"], document["chosen"]
        levels = self._levels(self._chosen)
        if levels != told:
            epoch += 1
            self._save(epoch, levels, self._chosen)
        self.told = self.told._replace(finalized=levels, epoch=epoch)

    def reload(self) -> None:
        """Put in force what another node has chosen. Raises StorageError."""
        with self._lock:
            for _, body in self._catalogue.load_documents(KIND):
                document = json.loads(body)
                self._chosen = document["chosen"]
                self.told = self.told._replace(finalized=self._levels(self._chosen), epoch=document["epoch"])

    def level(self, name: str) -> int:
        """The finalized level of one of the features in the table."""
        return self.told.finalized[name]

    def range(self, name: str) -> tuple[int, int] | None:
        """The levels of a feature of the table that may be finalized; None for any other name."""
        feature = self._features.get(name)
        return None if feature is None else (feature.lowest, feature.highest)

    def finalize(self, levels: Mapping[str, int]) -> None:
        """Choose these levels, all within their ranges. Returns when they are durable and in force. Raises StorageError."""
        with self._lock:
            chosen = {**self._chosen, **levels}
            finalized = self._levels(chosen)
            epoch = self.told.epoch + (finalized != self.told.finalized)
            if chosen == self._chosen:
                return
            self._save(epoch, finalized, chosen)
            self._chosen = chosen
            self.told = self.told._replace(finalized=finalized, epoch=epoch)

    def _levels(self, chosen: Mapping[str, int]) -> dict[str, int]:
        return {
            name: min(feature.highest, max(feature.lowest, chosen.get(name, feature.usual)))
            for name, feature in self._features.items()
        }

    def _save(self, epoch: int, told: Mapping[str, int], chosen: Mapping[str, int]) -> None:
        body = json.dumps({"epoch": epoch, "told": told, "chosen": chosen}, sort_keys=True).encode()
        self._catalogue.alter_documents([(KIND, _KEY, body)])
