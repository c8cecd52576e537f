"""The package's pytest fixtures. Pytest loads them itself, so a test only names a fixture:

def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

Installed as the top-level module ``reactor_broker_pytest`` (pyproject.toml: ``force-include``, entry point
``pytest11``). Pytest imports it at the start of every session, in any directory, where ``broker`` and ``protocol`` may
be modules of the user's. So it imports neither before a test asks for a fixture. In an editable install the module is a
copy of this file: reinstall after a change.
"""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.client.embedded import Broker

# The packages that are installed beside this module, and a module by which each is recognized.
_PACKAGES = {"broker": "broker.client.embedded", "protocol": "protocol.shuffle"}


@pytest.fixture
def broker() -> "Iterator[Broker]":
    """A broker for one test: empty, on free ports. It stops, and its data is removed, when the test ends."""
    with _new_broker() as running:
        yield running


@pytest.fixture(scope="session")
def session_broker() -> "Iterator[Broker]":
    """One broker for the whole session, for tests that can share it because each uses topics with names of its own."""
    with _new_broker() as running:
        yield running


def _new_broker() -> "Broker":
    try:
        from broker.client.embedded import Broker
    except Exception:  # a foreign module may raise anything
        for package, part in _PACKAGES.items():
            if not _is_there(part):
                pytest.fail(_shadowed(package), pytrace=False)
        raise
    return Broker()


def _is_there(part: str) -> bool:
    try:
        return find_spec(part) is not None
    except Exception:  # its parent is no package, or raises
        return False


def _shadowed(package: str) -> str:
    loaded = sys.modules.get(package)
    spec = loaded.__spec__ if loaded is not None else find_spec(package)
    path = getattr(loaded, "__file__", None) or (spec.origin if spec is not None else None) or "nothing"
    return (
        f"This fixture needs the package {package!r} of reactor-broker, but Python finds {path} under that name: rename it,"
        f" or keep its directory off sys.path, for example with `pytest --import-mode=importlib` instead of `python -m pytest`."
    )
