"""Names of Kafka 4's settings that have no effect here. They are accepted and remembered, so that a `server.properties`
or an administration tool works unchanged.

The settings in ``COARSER`` have an effect: they are converted, because they give a setting of this broker in another
unit.
"""

import re
from collections.abc import Container

# On each line: a common prefix, a colon, and the rest of each name.
_GROUPS = """
: background.threads broker.heartbeat.interval.ms broker.session.timeout.ms process.roles config.providers
: early.start.listeners initial.broker.registration.timeout.ms request.timeout.ms unstable.api.versions.enable
: unstable.feature.versions.enable fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
: delete.records.purgatory.purge.interval.requests max.incremental.fetch.session.cache.slots max.request.partition.size.limit
: num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
: create.topic.policy.class.name alter.config.policy.class.name
: controlled.shutdown.enable controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms principal.builder.class
: client.quota.callback.class
: auto.leader.rebalance.enable leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
: eligible.leader.replicas.enable reserved.broker.max.id auto.include.jmx.reporter
: security.inter.broker.protocol inter.broker.listener.name inter.broker.protocol.version listener.security.protocol.map
: security.providers
add.partitions.to.txn.retry.backoff.: ms max.ms
controller.: listener.names quorum.voters quorum.bootstrap.servers quorum.append.linger.ms quorum.election.backoff.max.ms
controller.: quorum.election.timeout.ms quorum.fetch.timeout.ms quorum.request.timeout.ms quorum.retry.backoff.ms
controller.: quorum.auto.join.enable
controller.: performance.sample.period.ms performance.always.log.threshold.ms quorum.fetch.snapshot.max.bytes
controller.: quorum.retry.backoff.max.ms quorum.fetch.max.bytes
group.coordinator.: append.linger.ms new.enable rebalance.protocols threads cached.buffer.max.bytes
group.share.: assignors enable initialize.retry.interval.ms max.groups persister.class.name
group.streams.: session.timeout.ms min.session.timeout.ms max.session.timeout.ms heartbeat.interval.ms max.size
group.streams.: num.standby.replicas
group.streams.: min.heartbeat.interval.ms max.heartbeat.interval.ms max.standby.replicas initial.rebalance.delay.ms
log.: dir.failure.timeout.ms flush.start.offset.checkpoint.interval.ms initial.task.delay.ms message.downconversion.enable
log.: message.format.version message.timestamp.difference.max.ms
log.cleaner.: threads io.buffer.load.factor io.buffer.size io.max.bytes.per.second
metadata.: log.dir log.max.record.bytes.between.snapshots log.max.snapshot.interval.ms log.segment.bytes log.segment.ms
metadata.: max.idle.interval.ms max.retention.bytes max.retention.ms log.segment.min.bytes
metric.: reporters
metrics.: num.samples recording.level sample.window.ms
kafka.: metrics.polling.interval.secs metrics.reporters
offsets.: commit.timeout.ms load.buffer.size topic.compression.codec topic.num.partitions topic.replication.factor
offsets.: topic.segment.bytes commit.required.acks
password.encoder.: cipher.algorithm iterations key.length keyfactory.algorithm
producer.id.: quota.window.num quota.window.size.seconds
alter.log.dirs.replication.quota.: window.num window.size.seconds
replication.quota.: window.num window.size.seconds
leader.replication.: throttled.rate
follower.replication.: throttled.rate
replica.: alter.log.dirs.io.max.bytes.per.second fetch.backoff.ms fetch.max.bytes fetch.min.bytes fetch.response.max.bytes
replica.: fetch.wait.max.ms high.watermark.checkpoint.interval.ms lag.time.max.ms selector.class socket.receive.buffer.bytes
replica.: socket.timeout.ms
remote.fetch.: max.wait.ms
remote.list.: offsets.request.timeout.ms
remote.log.: index.file.cache.total.size.bytes manager.copier.thread.pool.size manager.copy.max.bytes.per.second
remote.log.: manager.copy.quota.window.num manager.copy.quota.window.size.seconds manager.expiration.thread.pool.size
remote.log.: manager.fetch.max.bytes.per.second manager.fetch.quota.window.num manager.fetch.quota.window.size.seconds
remote.log.: manager.task.retry.backoff.max.ms manager.task.retry.backoff.ms manager.task.retry.jitter
remote.log.: manager.thread.pool.size manager.follower.thread.pool.size metadata.custom.metadata.max.bytes
remote.log.: metadata.manager.class.name
remote.log.: metadata.manager.class.path metadata.manager.impl.prefix metadata.manager.listener.name reader.max.pending.tasks
remote.log.: reader.threads storage.manager.class.name storage.manager.class.path storage.manager.impl.prefix
remote.log.: storage.system.enable
sasl.: client.callback.handler.class jaas.config kerberos.kinit.cmd kerberos.min.time.before.relogin
sasl.: kerberos.principal.to.local.rules kerberos.service.name kerberos.ticket.renew.jitter kerberos.ticket.renew.window.factor
sasl.: login.callback.handler.class login.class login.connect.timeout.ms login.read.timeout.ms login.refresh.buffer.seconds
sasl.: login.refresh.min.period.seconds login.refresh.window.factor login.refresh.window.jitter login.retry.backoff.max.ms
sasl.: login.retry.backoff.ms mechanism.controller.protocol mechanism.inter.broker.protocol server.callback.handler.class
sasl.: oauthbearer.header.urlencode oauthbearer.token.endpoint.url
share.coordinator.: append.linger.ms cold.partition.snapshot.interval.ms load.buffer.size snapshot.update.records.per.snapshot
share.coordinator.: state.topic.compression.codec state.topic.min.isr state.topic.num.partitions state.topic.prune.interval.ms
share.coordinator.: state.topic.replication.factor state.topic.segment.bytes threads write.timeout.ms cached.buffer.max.bytes
share.fetch.: purgatory.purge.interval.requests
socket.: connection.setup.timeout.max.ms connection.setup.timeout.ms
ssl.: endpoint.identification.algorithm engine.factory.class keymanager.algorithm keystore.type protocol provider
ssl.: secure.random.implementation trustmanager.algorithm truststore.type
delegation.token.: expiry.check.interval.ms expiry.time.ms max.lifetime.ms secret.key master.key
transaction.: abort.timed.out.transaction.cleanup.interval.ms partition.verification.enable two.phase.commit.enable
transaction.state.log.: load.buffer.size min.isr num.partitions replication.factor segment.bytes
"""


def _names() -> frozenset[str]:
    names = set[str]()
    for line in _GROUPS.strip().splitlines():
        prefix, _, rest = line.partition(": ")
        names.update(prefix.removesuffix(":") + name for name in rest.split())
    return frozenset(names)


WITHOUT_EFFECT = _names()
_SECRET = re.compile(r".*(password|jaas\.config|secret\.key|master\.key|keystore\.key|certificate\.chain|certificates)")
_MS_PER_MINUTE, _MS_PER_HOUR = 60_000, 3_600_000

# Kafka's name -> (setting here, factor from Kafka's unit to ours, number of Kafka's settings that take precedence).
COARSER: dict[str, tuple[str, int, int]] = {
    "log.retention.minutes": ("log_retention_ms", _MS_PER_MINUTE, 0),
    "log.retention.hours": ("log_retention_ms", _MS_PER_HOUR, 1),
    "log.roll.hours": ("log_roll_ms", _MS_PER_HOUR, 0),
    "log.roll.jitter.hours": ("log_roll_jitter_ms", _MS_PER_HOUR, 0),
    "log.flush.scheduler.interval.ms": ("log_flush_interval_ms", 1, 0),
    "broker.id": ("node_id", 1, 0),
}

# Settings of Kafka before version 4, and the replacement, as the end of a sentence.
_ZOOKEEPER = "leave it out: this broker needs no ZooKeeper"
_LISTENERS = "set listeners instead, for example kafka://0.0.0.0:9092"
_ADVERTISED = "set advertised_listeners instead"
REMOVED: dict[str, str] = {
    "host.name": _LISTENERS,
    "port": _LISTENERS,
    "advertised.host.name": _ADVERTISED,
    "advertised.port": _ADVERTISED,
    "broker.id.generation.enable": "leave it out and set node_id",
}


def answer(name: str) -> str | None:
    """The replacement of ``name``, a former setting of Kafka; None for any other name."""
    return _ZOOKEEPER if name.startswith("zookeeper.") else REMOVED.get(name)


def spelled(name: str, known: Container[str]) -> str:
    """``name`` with dots instead of underscores if that is a name of Kafka, because people write log_retention_hours;
    else unchanged."""
    dotted = name.replace("_", ".")
    is_kafkas = dotted in known or dotted in COARSER or dotted in WITHOUT_EFFECT or answer(dotted) is not None
    return dotted if name not in known and is_kafkas else name


def is_without_effect(name: str) -> bool:
    """True for a setting of Kafka that has no effect here."""
    return name in WITHOUT_EFFECT


def is_secret(name: str) -> bool:
    """True for a setting whose value Kafka does not show."""
    return _SECRET.fullmatch(name) is not None
