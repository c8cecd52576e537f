"""The TLS of all listeners, and the thread that looks every few seconds whether their certificates have changed.

It compares the content of the files, which are small, because times and sizes can stay the same.
"""

from collections.abc import Collection, Mapping, Sequence

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.per_listener import for_listener
from broker.metrics import Registry, names
from broker.runtime import Runtime
from broker.runtime.threads import Event
from broker.security.tls_listener import TlsListener

# How often (s) the files are read. Tools that renew certificates do so days before the old ones expire.
_EVERY_S = 5.0


def open_tls(config: BrokerConfig, listeners: Sequence[Listener], runtime: Runtime) -> Mapping[str, TlsListener]:
    """By the names of the listeners that have TLS. Raises ConfigError."""
    return {
        each.name: TlsListener(each.name, tls_config(config, each), runtime.disk, runtime.clock)
        for each in listeners
        if each.ssl
    }


def tls_config(config: BrokerConfig, listener: Listener) -> BrokerConfig:
    """The configuration of the listener's TLS. As in Kafka (KIP-684), a listener where clients log in asks for certificates only
    if that was set for this listener, because the broker's setting is for those that have no other way to know their clients.
    A certificate does not name the client there, so no rule has to match it.
    """
    of_listener = for_listener(config, listener.name)
    if listener.sasl:
        of_listener = attrs.evolve(of_listener, ssl_principal_mapping_rules="DEFAULT")
    asked = {f"{listener.name}.ssl{dot}client{dot}auth".lower() for dot in "_."}
    if listener.sasl and not asked & {key.lower() for key in config.listener_settings}:
        return attrs.evolve(of_listener, ssl_client_auth="none")
    return of_listener


def register_tls_metrics(metrics: Registry, listeners: Collection[TlsListener]) -> None:
    metrics.gauge(names.TLS_CERTIFICATE_EXPIRY, lambda: {(each.name,): each.expires_s for each in listeners})
    metrics.read_counter(names.TLS_RELOADS, lambda: {(each.name,): each.reloads for each in listeners})
    metrics.read_counter(names.TLS_FAILED_RELOADS, lambda: {(each.name,): each.failed_reloads for each in listeners})


class CertificateWatcher:
    """The body of the thread."""

    def __init__(self, listeners: Collection[TlsListener], every_s: float = _EVERY_S) -> None:
        self._listeners = listeners
        self._every_s = every_s
        self._woken = Event()

    def step(self, timeout: float | None) -> bool:
        woken = self._woken.wait(self._every_s if timeout is None else min(timeout, self._every_s))
        self._woken.clear()
        for listener in self._listeners:
            listener.reload()
        return woken

    def wakeup(self) -> None:
        """Look now."""
        self._woken.set()
