"""Builds the shuffle service from the broker's settings, for all its listeners. Runs on the thread that starts the broker.

Tests: tests/shuffle/test_writing.py, tests/shuffle/test_reading.py, tests/server/test_broker_server.py.
"""

from collections.abc import Sequence

from broker.config import BrokerConfig, Listener
from broker.errors import ConfigError
from broker.faults.faults import Faults
from broker.network.quota import DeliveryQuota, Throttling
from broker.part import PartThread, ServicePart, Surroundings
from broker.runtime import Runtime
from broker.runtime.timers import Timer
from broker.security.acl import Authorizer
from broker.security.client_quotas import ClientQuotas
from broker.shuffle.faulting import Faulting
from broker.shuffle.metrics import ShuffleMetrics
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partitions import Partitions, PartitionSettings
from broker.shuffle.service import Metering, ShuffleService
from broker.shuffle.serving.writers import WriterSettings
from broker.shuffle.spill.spiller import OPEN_FILES, Spiller
from broker.storage.log_manager import LogManager
from protocol.shuffle.ids import Generation

# The value of shuffle_disk_bytes that stands for half of the free space.
OF_THE_FILE_SYSTEM = -2


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    """The service keeps its data in its own files. Of ``logs`` it only learns how many nodes share the disk."""
    part = ShufflePart(
        surroundings.config,
        surroundings.runtime,
        surroundings.timer,
        surroundings.open_files,
        surroundings.security.authorizer,
        surroundings.security.quotas,
        surroundings.faults,
        nodes=1 if logs.nodes is None else logs.nodes.count,
    )
    ShuffleMetrics(part.partitions, part.partitions.budget, part.spiller, surroundings.runtime.clock).register(
        surroundings.metrics
    )
    if surroundings.has_http:
        from broker.shuffle.partition_views import PartitionViews

        views = PartitionViews(part.partitions, part.partitions.budget, surroundings.callers)
        views.add_figures(surroundings.figures)
        surroundings.routes.add(*views.routes())
    return part


class ShufflePart:
    """The partitions and the spiller, which all shuffle listeners share."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        timer: Timer,
        open_files: int = OPEN_FILES,
        authorizer: Authorizer | None = None,
        quotas: ClientQuotas | None = None,
        faults: Faults | None = None,
        nodes: int = 1,
    ) -> None:
        """``open_files``: the limit of open spill files. ``authorizer`` None: every client may do everything.
        ``quotas`` None: clients have no quotas. ``faults`` None: there never are any. ``nodes``: how many share the disk."""
        self._config = config
        self._nodes = nodes
        self._authorizer = authorizer
        self._runtime = runtime
        self._metering = (
            None
            if quotas is None
            else Metering(quotas, Throttling(timer), DeliveryQuota(quotas, runtime.clock, timer), runtime.clock)
        )
        self._budget = Budget(config.shuffle_memory_bytes, config.shuffle_disk_bytes, config.shuffle_quota_bytes)
        directory = f"{config.data_dir}/shuffle"
        self.spiller = Spiller(
            runtime.disk, directory, self._budget, runtime.clock, config.shuffle_released_bytes, open_files
        )
        settings = PartitionSettings(
            request_timeout_s=config.shuffle_partition_request_timeout_ms / 1000,
            retention_s=config.shuffle_pipelined_retention_ms / 1000,
            pipelined_bytes=config.shuffle_pipelined_bytes,
            ttl_s=config.shuffle_blocking_ttl_ms / 1000,
            writer_retention_s=config.shuffle_writer_retention_ms / 1000,
            owners_compete=authorizer is None,
        )
        self.partitions = Partitions(settings, self._budget, self.spiller, runtime.clock, timer)
        self._faulting = None if faults is None else Faulting(faults, self.partitions, runtime.clock, timer)

    def open(self) -> None:
        if self._faulting is not None:
            self._faulting.open()
        if self._metering is not None:
            self._metering.throttling.count_in(self._metering.quotas)
        self.partitions.load()
        config = self._config
        if config.shuffle_disk_bytes == OF_THE_FILE_SYSTEM:
            free = self._runtime.disk.free_bytes(config.data_dir)
            self._budget.disk_max = self._budget.disk + free // (2 * self._nodes)

    def threads(self) -> Sequence[PartThread]:
        return [PartThread("spiller", self.spiller)]

    def service(self, listener: Listener) -> ShuffleService:
        """Raises ConfigError for a release of Flink with an unknown protocol."""
        release = listener.options.get("generation", "2.0")
        try:
            generation = Generation(release)
        except ValueError:
            raise ConfigError(
                f"Set the generation of the listener {listener.name} to a release of Flink from 1.16 to 2.3, not {release!r}."
            ) from None
        return ShuffleService(
            generation,
            self.partitions,
            self.spiller,
            WriterSettings(window=self._config.shuffle_write_credit_buffers),
            self._config.outgoing_high_water_bytes,
            self._authorizer,
            self._config.socket_request_max_bytes,
            self._metering,
            self._faulting,
        )

    def stopping(self) -> None:
        """Nothing to do: no request of this protocol waits."""

    def shut_down(self) -> None:
        """Nothing to do: streams just end, and their readers and writers connect to the next broker."""

    def close(self) -> None:
        if self._faulting is not None:
            self._faulting.close()
        self.partitions.close()
        self.spiller.close()
