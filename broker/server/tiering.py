"""Opens the object store and the tier of a broker that has one, and refuses to start one that lacks it.

Nodes of one machine have one object store and one catalogue, which has the files of all of them. Each uploads what is its own;
the first one deletes objects, for all, and puts copies of the catalogue there.

Runs on the thread that starts the broker.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.cluster.nodes import directory_of, owner_of
from broker.config import BrokerConfig
from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import Catalogue, RemoteFile
from broker.runtime import Runtime
from broker.runtime.disk import Disk
from broker.runtime.objects import ObjectStore
from broker.storage import partition_dir
from broker.storage.tier.detach import detach

if TYPE_CHECKING:
    from broker.server.member import Member
    from broker.storage.tier.tier import Tier


def open_tier(
    config: BrokerConfig,
    disk: Disk,
    catalogue: Catalogue,
    runtime: Runtime,
    objects: ObjectStore | None = None,
    member: "Member | None" = None,
) -> "Tier | None":
    """None without an object store, about which nothing is imported then. ``objects``: the store, if it is open. ``member``: this
    node, of several on this machine. Raises ConfigError."""
    if config.objects is None:
        if member is None:
            refuse_without_store(disk, catalogue, config.data_dir)
        return None
    from broker.runtime.open_objects import open_objects, probe
    from broker.storage.tier.catalogue_copies import COPY, CatalogueCopies
    from broker.storage.tier.tier import Tier

    is_open = objects is not None
    objects = open_objects(config.objects) if objects is None else objects
    try:
        if not is_open and not any(True for _ in catalogue.load_remote_files()):
            probe(objects)  # later starts do not depend on the store
        mine = None if member is None else _own_files(catalogue, member.place, member.count, runtime.clock.time_ms())
        tier = Tier(
            disk,
            objects,
            catalogue,
            runtime.clock,
            config.data_dir,
            config.remote_cache_bytes,
            cache_disk=runtime.disk,
            mine=mine,
        )
        tier.deletes_objects = member is None or member.place == 0
        if config.catalogue is None and tier.deletes_objects:

            def copy(path: str) -> None:
                if member is None:
                    catalogue.copy(lambda: None)(path)
                else:
                    member.copy_catalogue(path)

            path = f"{config.data_dir}/{COPY}"
            tier.copies = CatalogueCopies(copy, objects, runtime.disk, path, runtime.clock)
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


def _own_files(catalogue: Catalogue, place: int, count: int, now_ms: int) -> Callable[[RemoteFile], bool]:
    """Which files are those of the node at this place. Those of a topic that another node has deleted while this one was not
    there are given up. Raises StorageError."""
    from broker.storage.tier import keys

    topics = {row.name: row.topic_id for row in catalogue.topics()}

    def mine(file: RemoteFile) -> bool:
        return _place_of(file, count) == place

    gone = []
    for file in filter(mine, catalogue.load_remote_files()):
        partition, key = partition_dir.parse_name(file.path.rpartition("/")[0]), keys.parse(file.object)
        if partition is not None and key is not None and topics.get(partition[0]) != key.topic_id:
            gone.append(file.path)
    if gone:
        catalogue.alter_remote_files((), gone, now_ms)
    return mine


def _place_of(file: RemoteFile, count: int) -> int:
    """Of the node that has the file's directory, or the remains of it."""
    name = file.path.rpartition("/")[0]
    partition = partition_dir.parse_name(name.rpartition(".")[0] if partition_dir.is_deleted(name) else name)
    return 0 if partition is None else owner_of(*partition, count)


def refuse_without_store(disk: Disk, catalogue: Catalogue, data_dir: str, count: int = 1) -> None:
    """Otherwise records would be missing, and recovery would take that for damage. If none is, the store is not needed, and what
    the catalogue says of it would soon be wrong. ``count``: of the nodes that share the directory. Raises ConfigError,
    StorageError."""
    for file in catalogue.load_remote_files():
        directory = data_dir if count == 1 else directory_of(data_dir, _place_of(file, count))
        if not disk.exists(f"{directory}/{file.path}"):
            raise ConfigError(
                f"Set objects to the object store of {data_dir}: {file.path} and perhaps others are only there."
            )
    detach(catalogue)
