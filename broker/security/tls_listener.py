"""TLS of a listener: its present certificates, and the principals of clients with certificates.

Any thread may call any method. ``wrap`` and ``principal`` are for processors and never wait; ``reload`` reads files and is for
other threads. A reload that fails changes nothing.

`CertificateWatcher` is the thread that checks every few seconds whether certificates of any listener have changed. It
compares the content of the files, which are small, because times and sizes can stay the same.

A broker without TLS imports this module, too, but neither ``ssl`` nor ``cryptography``: they would take an eighth of the CPU of
its start.
"""

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.per_listener import for_listener
from broker.errors import ConfigError
from broker.log import get_logger
from broker.metrics import Registry, names
from broker.runtime import Runtime
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.net import Socket
from broker.runtime.threads import Event, Lock
from broker.security.principal import ANONYMOUS, USER, Principal, java_name, map_subject, parse_rules

if TYPE_CHECKING:
    from cryptography import x509

    from broker.runtime.tls import TlsContext, TlsSocket

log = get_logger("security")
T = TypeVar("T")

# No store is larger: the certificates of all public authorities together take 250 KB.
_FILE_MAX_BYTES = 4 * 1024 * 1024
_WARN_BEFORE = datetime.timedelta(days=14)


@attrs.frozen(repr=False)
class _Sources:
    """The content of the settings and of the files that they name. None: not set."""

    store: bytes | None
    chain: bytes | None
    key: bytes | None
    trusted: bytes | None
    revoked: bytes | None


@attrs.frozen(eq=False)
class _Loaded:
    """The result of loading the sources."""

    sources: _Sources
    context: "TlsContext"
    certificate: "x509.Certificate"


class TlsListener:
    """``config``: with the listener's own settings (`for_listener`)."""

    def __init__(self, name: str, config: BrokerConfig, disk: Disk, clock: Clock) -> None:
        """Reads the files. Raises ConfigError."""
        self.name = name
        self.reloads = 0
        self.failed_reloads = 0
        self._disk = disk
        self._clock = clock
        self._lock = Lock()  # one reload at a time
        self._config = config
        self._rules = parse_rules(config.ssl_principal_mapping_rules)
        self._complaint = ""  # the error of the last reload
        try:
            self._loaded = _load(config, self._read(config))
        except ValueError as error:
            raise ConfigError(f"Correct the TLS settings of the listener {name}: {error}.") from None
        self._warn_of_expiry()

    # -- for processors ---------------------------------------------------------------------------------------------------

    def wrap(self, socket: Socket) -> "TlsSocket":
        """Wrap a new connection, with the present certificates."""
        from broker.runtime.tls import TlsSocket

        return TlsSocket(socket, self._loaded.context)

    def principal(self, certificate: bytes | None) -> Principal:
        """The principal of this certificate (DER, verified). NoRuleMatches or ValueError: the client is refused."""
        if certificate is None:
            return ANONYMOUS
        from broker.security.key_store import subject_of

        return Principal(USER, map_subject(self._rules, java_name(subject_of(certificate))))

    # -- for the others ---------------------------------------------------------------------------------------------------

    @property
    def expires_s(self) -> float:
        """When the certificate expires, in seconds since 1970."""
        return self._loaded.certificate.not_valid_after_utc.timestamp()

    def reload(self, config: BrokerConfig | None = None, *, at_start: bool = False) -> str | None:
        """Load the files again, with ``config`` if the settings have changed, for new connections. Returns the error,
        if any; then nothing has changed. ``at_start``: no client has seen the certificate that is replaced."""
        with self._lock:
            new = config or self._config
            try:
                rules = parse_rules(new.ssl_principal_mapping_rules)
                sources = self._read(new)
                if config is None and sources == self._loaded.sources:
                    self._complaint = ""
                    return None
                loaded = _load(new, sources) if at_start else self._replacement(new, sources)
            except (ValueError, ConfigError) as error:
                return self._complain(str(error))
            self._config, self._rules, self._loaded = new, rules, loaded
            self._complaint = ""
            self.reloads += 1
        log.info("certificate_reloaded", listener=self.name, expires=loaded.certificate.not_valid_after_utc.isoformat())
        self._warn_of_expiry()
        return None

    def check(self, config: BrokerConfig) -> str | None:
        """The error that ``reload`` would return; None: it would succeed. Changes nothing."""
        try:
            parse_rules(config.ssl_principal_mapping_rules)
            self._replacement(config, self._read(config))
        except (ValueError, ConfigError) as error:
            return str(error)
        return None

    def _replacement(self, config: BrokerConfig, sources: _Sources) -> _Loaded:
        """Raises ValueError."""
        loaded = _load(config, sources)
        _check_replacement(config, self._loaded.certificate, loaded.certificate)
        return loaded

    def _complain(self, reason: str) -> str:
        """Log each reason once, because the files are read every few seconds."""
        if reason != self._complaint:
            self._complaint = reason
            self.failed_reloads += 1
            log.error("certificate_refused", listener=self.name, error=reason)
        return reason

    def _warn_of_expiry(self) -> None:
        expires = self._loaded.certificate.not_valid_after_utc
        now = datetime.datetime.fromtimestamp(self._clock.time_ms() / 1000, datetime.UTC)
        if expires - now < _WARN_BEFORE:
            log.warning("certificate_expires", listener=self.name, expires=expires.isoformat())

    def _read(self, config: BrokerConfig) -> _Sources:
        inline = config.ssl_keystore_key is not None
        if inline == (config.ssl_keystore_location is not None):
            raise ValueError(
                "ssl_keystore_location, or ssl_keystore_key with ssl_keystore_certificate_chain, has to say where the "
                "certificate and its key are" + (", not both" if inline else "")
            )
        if config.ssl_truststore_location and config.ssl_truststore_certificates:
            raise ValueError("ssl_truststore_location and ssl_truststore_certificates are both set")
        return _Sources(
            store=self._file("ssl_keystore_location", config.ssl_keystore_location),
            chain=self._text("ssl_keystore_certificate_chain", config.ssl_keystore_certificate_chain),
            key=self._text("ssl_keystore_key", config.ssl_keystore_key),
            trusted=self._file("ssl_truststore_location", config.ssl_truststore_location)
            or self._text("ssl_truststore_certificates", config.ssl_truststore_certificates),
            revoked=self._file("ssl_crl_location", config.ssl_crl_location),
        )

    def _text(self, setting: str, value: str | None) -> bytes | None:
        """PEM, or the content of the file of that name."""
        if value is None or "-----BEGIN " in value:
            return None if value is None else value.encode()
        return self._file(setting, value.strip(), secret=True)

    def _file(self, setting: str, path: str | None, secret: bool = False) -> bytes | None:
        if path is None:
            return None
        where = f"the file in {setting}" if secret else path
        try:
            file = self._disk.open(path, read_only=True)
            try:
                data = file.pread(_FILE_MAX_BYTES + 1, 0)
            finally:
                file.close()
        except OSError as error:
            raise ValueError(f"{where} cannot be read ({error.strerror or error})") from None
        if len(data) > _FILE_MAX_BYTES:
            raise ValueError(f"{where} is larger than {_FILE_MAX_BYTES} bytes")
        return data


def _load(config: BrokerConfig, sources: _Sources) -> _Loaded:
    """Raises ValueError."""
    from broker.runtime.tls_context import TlsMaterial, server_context
    from broker.security.key_store import as_pem, read_key_store, read_trust_store

    asks = config.ssl_client_auth != "none"
    if asks and sources.trusted is None:
        raise ValueError(
            f"ssl_client_auth is {config.ssl_client_auth}, and no ssl_truststore_location says which clients are trusted"
        )
    data = sources.store if sources.store is not None else (sources.key or b"") + b"\n" + (sources.chain or b"")
    store = _about("the key store", read_key_store, data, config.ssl_keystore_password, config.ssl_key_password)
    trusted = (
        _about("the trust store", read_trust_store, sources.trusted, config.ssl_truststore_password) if asks else []
    )
    context = server_context(
        TlsMaterial(
            certificate=store.certificates_pem,
            key=store.key_pem,
            trusted=as_pem(trusted),
            revoked=(sources.revoked or b"").decode("utf-8", "replace") if asks else "",
            client_auth=config.ssl_client_auth,
            protocols=config.ssl_enabled_protocols,
            cipher_suites=config.ssl_cipher_suites,
        )
    )
    return _Loaded(sources, context, store.certificate)


def _about(subject: str, read: Callable[..., T], *arguments: object) -> T:
    try:
        return read(*arguments)
    except ValueError as error:
        raise ValueError(f"{subject} {error}") from None


def _check_replacement(config: BrokerConfig, old: "x509.Certificate", new: "x509.Certificate") -> None:
    """Kafka's rules: clients know the broker by its names, so another broker's file is more likely than new names."""
    from broker.security.key_store import names_of

    if old.subject != new.subject and not config.ssl_allow_dn_changes:
        raise ValueError(
            f"the new certificate is for {java_name(new.subject)} and the old one for {java_name(old.subject)}: "
            "set ssl_allow_dn_changes if that is intended"
        )
    missing = names_of(old) - names_of(new)
    if missing and not config.ssl_allow_san_changes:
        raise ValueError(
            f"the new certificate lacks the names {', '.join(sorted(missing))}: set ssl_allow_san_changes if that is intended"
        )


# How often (s) the files are read. Tools renew certificates days before the old certificates expire.
_EVERY_S = 5.0


def open_tls(config: BrokerConfig, listeners: Sequence[Listener], runtime: Runtime) -> Mapping[str, TlsListener]:
    """The TLS of listeners that have it, by their names. Raises ConfigError."""
    return {
        listener.name: TlsListener(listener.name, tls_config(config, listener), runtime.disk, runtime.clock)
        for listener in listeners
        if listener.ssl
    }


def tls_config(config: BrokerConfig, listener: Listener) -> BrokerConfig:
    """The configuration of the listener's TLS. As in Kafka (KIP-684), a listener with logins asks for certificates only
    if that was set for this listener, because the broker's setting is for listeners that cannot authenticate their
    clients otherwise. A certificate does not name the client there, so no rule has to match it.
    """
    of_listener = for_listener(config, listener.name)
    if listener.sasl:
        of_listener = attrs.evolve(of_listener, ssl_principal_mapping_rules="DEFAULT")
    asked = {f"{listener.name}.ssl{dot}client{dot}auth".lower() for dot in "_."}
    if listener.sasl and not asked & {key.lower() for key in config.listener_settings}:
        return attrs.evolve(of_listener, ssl_client_auth="none")
    return of_listener


def register_tls_metrics(metrics: Registry, listeners: Collection[TlsListener]) -> None:
    metrics.gauge(
        names.TLS_CERTIFICATE_EXPIRY, lambda: {(listener.name,): listener.expires_s for listener in listeners}
    )
    metrics.read_counter(names.TLS_RELOADS, lambda: {(listener.name,): listener.reloads for listener in listeners})
    metrics.read_counter(
        names.TLS_FAILED_RELOADS, lambda: {(listener.name,): listener.failed_reloads for listener in listeners}
    )


class CertificateWatcher:
    """The body of the thread ``certificate-watcher``."""

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
        """Check now."""
        self._woken.set()
