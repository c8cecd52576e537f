"""Opens the object store and the tier of a broker that has one, and refuses to start one that lacks it.

Runs on the thread that starts the broker.
"""

from typing import TYPE_CHECKING

from broker.config import BrokerConfig
from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import Catalogue
from broker.runtime import Runtime
from broker.runtime.disk import Disk
from broker.runtime.objects import ObjectStore
from broker.storage.tier.detach import detach

if TYPE_CHECKING:
    from broker.storage.tier.tier import Tier


def open_tier(
    config: BrokerConfig, disk: Disk, catalogue: Catalogue, runtime: Runtime, objects: ObjectStore | None = None
) -> "Tier | None":
    """None without an object store, about which nothing is imported then. ``objects``: the store, if it is open. Raises
    ConfigError."""
    if config.objects is None:
        _refuse_without_store(config, disk, catalogue)
        return None
    from broker.runtime.open_objects import open_objects, probe
    from broker.storage.tier.catalogue_copies import COPY, CatalogueCopies
    from broker.storage.tier.tier import Tier

    is_open = objects is not None
    objects = open_objects(config.objects) if objects is None else objects
    try:
        if not is_open and not any(True for _ in catalogue.load_remote_files()):
            probe(objects)  # later starts do not depend on the store
        tier = Tier(
            disk, objects, catalogue, runtime.clock, config.data_dir, config.remote_cache_bytes, cache_disk=runtime.disk
        )
        if config.catalogue is None:
            path = f"{config.data_dir}/{COPY}"
            tier.copies = CatalogueCopies(catalogue, objects, runtime.disk, path, runtime.clock)
        return tier
    except (OSError, StorageError) as error:
        raise ConfigError(f"The data directory {config.data_dir} cannot be used: {error}.") from error


def claim_store(tier: "Tier", cluster_id: str) -> None:
    """Refuse the place of another cluster, whose copies of the catalogue and this one's would be mixed up. Later starts do not
    depend on the store. Raises ConfigError."""
    from broker.storage.journal import store_mark

    if tier.disk.remote_files():
        return
    try:
        store_mark.claim(tier.objects, cluster_id, lambda: None)
    except OSError as error:
        raise ConfigError(f"The object store cannot be used: {error}.") from error


def _refuse_without_store(config: BrokerConfig, disk: Disk, catalogue: Catalogue) -> None:
    """Otherwise records would be missing, and recovery would take that for damage. If none is, the store is not needed, and what
    the catalogue says of it would soon be wrong."""
    for file in catalogue.load_remote_files():
        if not disk.exists(f"{config.data_dir}/{file.path}"):
            raise ConfigError(
                f"Set objects to the object store of {config.data_dir}: {file.path} and perhaps others are only there."
            )
    detach(catalogue)
