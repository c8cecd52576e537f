"""The services of a broker, by the scheme of its listeners, and how they are opened.

On the thread that starts the server. A service's module is imported only if a listener has its scheme.

Tests: tests/server/test_services.py, tests/server/test_broker_server.py.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from broker.config import BrokerConfig, Listener
from broker.errors import ConfigError
from broker.faults.fault import MACHINE, Kind, Vocabulary
from broker.faults.faults import RESTART, Faults
from broker.part import PartThread, ServicePart, Surroundings
from broker.runtime.threads import Body
from broker.storage.log_manager import LogManager


@attrs.frozen
class Source:
    """Where the server finds a service: the module that has its ``assemble`` function (see ``broker.part``)."""

    module: str
    sasl: bool = False  # its clients can log in with SASL
    always: bool = False  # opened even where no listener has its scheme
    open_files: int = 0  # how many files besides the logs' the service would like to keep open
    faulting: str | None = None  # the module that has its ``vocabulary`` of faults
    handlers: str | None = None  # the package whose modules it imports when it is opened


# By the scheme of their listeners, in the order in which they open; they close in the reverse order.
SERVICES: Final = {
    # Always: transactions that an earlier broker has decided are carried out, and committed offsets expire.
    "kafka": Source(
        "broker.kafka.assembly",
        sasl=True,
        always=True,
        faulting="broker.kafka.faulting.faulting",
        handlers="broker.kafka.handlers",
    ),
    "shuffle": Source("broker.shuffle.assembly", open_files=256, faulting="broker.shuffle.faulting"),
    "pulsar": Source(
        "broker.pulsar.assembly", sasl=True, faulting="broker.pulsar.faulting", handlers="broker.pulsar.handlers"
    ),
    # Last: it serves the routes of the others.
    "http": Source("broker.http.assembly"),
}


def new_faults(
    config: BrokerConfig | None = None, *, has_machine: bool = False, restart: Callable[[], object] | None = None
) -> Faults:
    """Faults on demand, in words of the protocols of this broker; None: of all protocols that have any.

    ``has_machine``: also faults of the machine, for a broker that has a ``broker.server.machine``. ``restart`` has the broker
    stopped and started; its threads call it.
    """

    def vocabularies() -> Mapping[str, Vocabulary]:
        words: dict[str, Vocabulary] = {
            scheme: importlib.import_module(source.faulting).vocabulary()
            for scheme, source in (SERVICES if config is None else sources(config)).items()
            if source.faulting is not None
        }
        if restart is not None:
            for scheme, each in words.items():
                words[scheme] = attrs.evolve(each, kinds={**each.kinds, RESTART: Kind()})
        return {**words, "machine": MACHINE} if has_machine else words

    return Faults(vocabularies, restart)


def all_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners of the data plane and, last, that of the control plane if there is any."""
    control = config.control_listener
    return [*config.listeners, *([control] if control is not None else [])]


def is_controlling(config: BrokerConfig, listener: Listener) -> bool:
    """Whether the control plane serves it: the control listener, and HTTP, so that it works while the data plane is full."""
    control = config.control_listener
    return control is not None and (listener is control or listener.scheme == "http")


def check_schemes(listeners: Sequence[Listener]) -> None:
    """Raises ConfigError for a listener that no service can serve."""
    for listener in listeners:
        if listener.scheme not in SERVICES:
            *others, last = (f"{scheme}://" for scheme in SERVICES)
            schemes = f"{', '.join(others)} and {last}"
            raise ConfigError(
                f"Take the listener {listener} out: this broker serves {schemes} listeners only, "
                "with +ssl, +sasl or +sasl+ssl before the colon."
            )
        if listener.sasl and not SERVICES[listener.scheme].sasl:
            raise ConfigError(
                f"Write the listener {listener} as {listener.scheme}+ssl://: its protocol has no SASL. "
                "With ssl_client_auth = required, certificates say who the clients are."
            )


def sources(config: BrokerConfig) -> dict[str, Source]:
    """The services of this broker, by scheme."""
    schemes = {listener.scheme for listener in all_listeners(config)}
    return {scheme: source for scheme, source in SERVICES.items() if source.always or scheme in schemes}


def import_services(config: BrokerConfig) -> None:
    """What ``open_services`` would import: at least 0.5 s of CPU, which a take-over need not wait for."""
    for source in sources(config).values():
        importlib.import_module(source.module)
        if source.handlers is not None:
            for module in pkgutil.iter_modules(importlib.import_module(source.handlers).__path__):
                importlib.import_module(f"{source.handlers}.{module.name}")


def open_services(
    surroundings: Surroundings,
    logs: LogManager,
    parts: dict[str, ServicePart],
    spawn: Callable[[str, Body], None],
) -> None:
    """Open the services that are always open, with the storage's threads between theirs; then the others.

    ``surroundings``: of all services; its ``open_files`` are shared out among them. Each part is put into ``parts`` before it is
    opened, so that it can be closed if that fails. ``spawn`` starts a thread of this name.
    """
    wanted = sources(surroundings.config)
    wished_files = sum(source.open_files for source in wanted.values())

    def open_service(scheme: str) -> Sequence[PartThread]:
        source = wanted[scheme]
        open_files = surroundings.open_files * source.open_files // max(wished_files, 1)
        assemble = importlib.import_module(source.module).assemble
        part: ServicePart = assemble(attrs.evolve(surroundings, open_files=open_files), logs)
        parts[scheme] = part
        part.open()
        return part.threads()

    threads = [thread for scheme in wanted if wanted[scheme].always for thread in open_service(scheme)]
    for number, body in enumerate(logs.flusher.threads):
        spawn(f"flusher-{number}", body)
    for thread in threads:
        if thread.waited_for:
            spawn(thread.name, thread.body)
    spawn("housekeeper", logs.housekeeper)
    for thread in threads:
        if not thread.waited_for:
            spawn(thread.name, thread.body)
    for scheme in wanted:
        if not wanted[scheme].always:
            for thread in open_service(scheme):
                spawn(thread.name, thread.body)
