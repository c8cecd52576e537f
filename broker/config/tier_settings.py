"""Settings of the object store, and of the segments that are in it.

Tests: tests/config/test_settings.py,
tests/config/test_load.py.
"""

import attrs

from broker.config.setting import INT_MAX, own_setting, setting


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class TierSettings:
    """The object store, tiered storage, and a catalogue that several machines reach."""

    catalogue: str | None = own_setting(
        None,
        secret=True,  # a URL may have a password
        doc="The PostgreSQL database (15 or newer) that keeps the catalogue and the journal: "
        "`postgresql://user:password@host:port/database`. With it and `objects`, the broker keeps nothing of its own: the disk "
        "is a cache, and after the loss of the machine a broker that is started elsewhere goes on with everything that was "
        "acknowledged. Records are acknowledged, also with `acks=1`, and visible when the journal has them.",
        reason="Unset: the catalogue is an SQLite file in the data directory, and durable is what is fsynced.",
    )
    catalogue_schema: str = own_setting(
        "broker",
        doc="The schema of that database which the broker's tables are in. Brokers that share a database and have nothing to do "
        "with each other need different ones, and different prefixes in the object store.",
        reason="A schema of its own leaves the database's other tables alone; the name says whose it is.",
    )
    standby: bool = own_setting(
        False,
        doc="Wait until the broker that owns the catalogue has gone, and then take over. Needs `catalogue`.",
        reason="Without it, a broker that is started by mistake beside another one says so and ends.",
    )
    nodes: int = own_setting(
        1,
        least=1,
        most=64,
        doc="So many processes of `broker serve`, each with a part of the partitions, groups and transactional ids. Their ids "
        "and ports follow on those of the first one, which are `node_id` and the listeners'. With `catalogue`, machines that are "
        "started with the same number divide them among themselves.",
        reason="One process uses one core, and is enough for most.",
    )
    machine_weight: float = own_setting(
        1.0,
        least=0.0,
        most=1000.0,
        doc="Of several machines that divide `nodes` among themselves: this one should have as many as its weight is in "
        "proportion to those of the others. One of weight 0 has nodes only while no other machine is there.",
        reason="Machines are often alike.",
    )
    ship_linger_ms: int = own_setting(
        250,
        least=0,
        doc="While records are being put into the object store, how long others wait for company before they are sent there as "
        "well. Longer: fewer requests to the store. Nothing waits while nothing is on its way.",
        reason="Four requests a second are what most object stores charge little for.",
    )
    objects: str | None = own_setting(
        None,
        doc="The object store that closed segments are uploaded to: `s3://bucket/prefix`, `gs://bucket/prefix`, "
        "`az://container/prefix`, `file:///directory` or `memory://`; credentials come from the environment. The local disk then "
        "has the newest records only, as `local.retention.ms` and `local.retention.bytes` say. Without `catalogue`, the open "
        "segments are on the local disk alone, and are lost with it; the store gets a copy of the catalogue about once a minute, "
        "from which `broker restore --from` makes a data directory.",
        reason="Unset: everything is on the local disk.",
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        least=1,
        most=INT_MAX,
        doc="How often to look for segments to upload, and for objects and local copies to remove.",
    )
    remote_cache_bytes: int = own_setting(
        1024 * 1024 * 1024,
        least=1024 * 1024,
        doc="The most that pieces of segments take on the local disk that were read from the object store.",
        reason="Kafka gives as much to the indexes of such segments alone.",
    )
    remote_object_delete_delay_ms: int = own_setting(
        60_000,
        least=0,
        doc="How long an object stays in the store after the last file in it was deleted: readers may have begun to read it.",
        reason="The default of `file.delete.delay.ms`, which comes before it.",
    )
