"""The shuffle service put together from the broker's settings, for all its listeners."""

from broker.config import BrokerConfig, Listener
from broker.errors import ConfigError
from broker.runtime import Runtime
from broker.runtime.timers import Timer
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partitions import Partitions, PartitionSettings
from broker.shuffle.service import ShuffleService
from broker.shuffle.serving.writers import WriterSettings
from broker.shuffle.spill.spiller import OPEN_FILES, Spiller
from protocol.shuffle.generation import Generation

# The value of shuffle_disk_bytes for half of what is free.
OF_THE_FILE_SYSTEM = -2


class Shuffle:
    """``spiller`` is the body of a thread that the broker runs from here to ``close``."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, timer: Timer, open_files: int = OPEN_FILES) -> None:
        """``open_files``: spill files that may be open at a time."""
        self._config = config
        budget = Budget(config.shuffle_memory_bytes, config.shuffle_disk_bytes, config.shuffle_quota_bytes)
        directory = f"{config.data_dir}/shuffle"
        self.spiller = Spiller(
            runtime.disk, directory, budget, runtime.clock, config.shuffle_released_bytes, open_files
        )
        settings = PartitionSettings(
            request_timeout_s=config.shuffle_partition_request_timeout_ms / 1000,
            retention_s=config.shuffle_pipelined_retention_ms / 1000,
            pipelined_bytes=config.shuffle_pipelined_bytes,
            ttl_s=config.shuffle_blocking_ttl_ms / 1000,
            writer_retention_s=config.shuffle_writer_retention_ms / 1000,
        )
        self.partitions = Partitions(settings, budget, self.spiller, runtime.clock, timer)
        self.partitions.load()
        if config.shuffle_disk_bytes == OF_THE_FILE_SYSTEM:
            budget.disk_max = budget.disk + runtime.disk.free_bytes(config.data_dir) // 2

    def service(self, listener: Listener) -> ShuffleService:
        """Raises ConfigError for a generation of Flink's that is not spoken."""
        wanted = listener.options.get("generation", "2.0")
        try:
            generation = Generation(wanted)
        except ValueError:
            raise ConfigError(
                f"Set the generation of the listener {listener.name} to a release of Flink from 1.16 to 2.3, not {wanted!r}."
            ) from None
        return ShuffleService(
            generation,
            self.partitions,
            self.spiller,
            WriterSettings(window=self._config.shuffle_write_credit_buffers),
            self._config.outgoing_high_water_bytes,
        )

    def close(self) -> None:
        """The spiller's thread has ended."""
        self.partitions.close()
        self.spiller.close()
