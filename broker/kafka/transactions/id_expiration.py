"""Forgets transactional ids that were unused for longer than ``transactional_id_expiration_ms``.

A sweep looks at all of them, on the catalogue writer's thread, a part at a time.

Tests: tests/kafka/transactions/test_coordinator.py.
"""

from collections.abc import Iterable
from functools import partial

from broker.config import BrokerConfig
from broker.kafka.transactions.executor import log_failure
from broker.kafka.transactions.registry import TransactionEntry, TransactionRegistry
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer, TimerHandle

# Transactional ids that a sweep looks at before it lets other changes of the catalogue pass.
_SWEEP_PART = 1000


class TransactionalIdExpiration:
    def __init__(
        self, clock: Clock, timer: Timer, writer: CatalogueWriter, config: BrokerConfig, registry: TransactionRegistry
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._writer = writer
        self._config = config
        self._registry = registry
        self._next_sweep: TimerHandle | None = None

    def start(self) -> None:
        interval_s = self._config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        # The timer's thread must not walk all transactional ids: the catalogue writer's thread does.
        self._next_sweep = self._timer.at(
            self._clock.monotonic() + interval_s, partial(self._writer.call_soon, self._begin_sweep)
        )

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _begin_sweep(self) -> None:
        self._sweep(self._registry.entries())

    def _sweep(self, entries: list[TransactionEntry]) -> None:
        """Look at some of them now, and at the others after everything that waits for the writer by then."""
        try:
            self._forget_unused(entries[:_SWEEP_PART])
        finally:  # the sweeps go on, whatever fails for one id
            if self._registry.is_active:
                if len(entries) > _SWEEP_PART:
                    self._writer.call_soon(partial(self._sweep, entries[_SWEEP_PART:]))
                else:
                    self.start()

    def _forget_unused(self, entries: Iterable[TransactionEntry]) -> None:
        now_ms = self._clock.time_ms()
        for entry in entries:
            transaction = entry.transaction
            with entry.lock:
                if not transaction.is_unused(now_ms, self._config.transactional_id_expiration_ms):
                    continue
                transaction.forget()
                self._registry.remove(entry)
                self._writer.change(partial(_delete, transaction.transactional_id), log_failure)


def _delete(transactional_id: str, catalogue: Catalogue) -> None:
    catalogue.delete_transaction(transactional_id)
