"""The package's pytest plugin. Pytest loads it itself, so a test only names a fixture:

def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

``broker`` is a broker for one test, with the options of the marker ``@pytest.mark.broker``; ``session_broker`` is one for all
tests of a process (with pytest-xdist, of a worker), and ``broker_topic`` a topic of it for one test. A test with the marker
``@pytest.mark.broker_chaos`` runs under faults, once for each of many seeds (broker/client/chaos). See docs/TESTING.md.

Installed as the top-level module ``reactor_broker_pytest`` (pyproject.toml: ``force-include``, entry point
``pytest11``). Pytest imports it at the start of every session, in any directory, where ``broker`` and ``protocol`` may
be modules of the user's. So it imports neither before a test asks for a fixture. In an editable install the module is a
copy of this file: reinstall after a change.
"""

import logging
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker.client.embedded import Broker

# The packages that are installed beside this module, and a module by which each is recognized.
_PACKAGES = {"broker": "broker.client.embedded", "protocol": "protocol.shuffle"}
_LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0")
_MARKER = (
    "broker(settings={...}, listeners=[...], security='scram'): how the fixture `broker` starts the broker of this test"
)
_CHAOS_MARKER = (
    "broker_chaos(seeds=50, faults=[...]): run the test once for each seed, under faults that are drawn from it"
)
# The user of a broker with security="scram". The listener is on the loopback interface and lives as long as the test.
_LOGIN = ("test", "test-password")
# Kafka allows 249 characters, of which the number at the end takes a few.
_NAME_MAX = 230
_numbers = count(1)
# In the stash of a test that runs under faults: what is to be said of it, if it fails.
_chaos = pytest.StashKey[list[str]]()
_log = logging.getLogger("reactor_broker")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.addinivalue_line("markers", _CHAOS_MARKER)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reactor-broker")
    for option, text in (
        ("seed", "run the tests with @pytest.mark.broker_chaos under the plan of this seed only"),
        ("seeds", "run the tests with @pytest.mark.broker_chaos under the plans of so many seeds"),
    ):
        group.addoption(f"--broker-chaos-{option}", type=int, default=None, metavar="N", help=text)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """pytest does not call the methods of unittest's cases itself, so they would run once, without faults."""
    if item.get_closest_marker("broker_chaos") is not None and hasattr(getattr(item, "cls", None), "assertEqual"):
        pytest.fail(
            "@pytest.mark.broker_chaos is for functions and pytest's classes, not for unittest.TestCase.", False
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Runs the body of a test with the marker ``broker_chaos`` once for each seed, within the one test that pytest knows.

    Not as a test for each seed, as pytest-repeat does: hundreds of tests hide the others, and the search for the fewest faults
    needs runs that nobody can foresee. So fixtures are set up once. Each run calls this hook again, so that plugins for
    coroutines run the body in their way. A wrapper, because it comes before all of them.
    """
    marker = pyfuncitem.get_closest_marker("broker_chaos")
    if marker is None or _chaos in pyfuncitem.stash:
        return (yield)
    _check_packages()
    from broker.client.chaos import marked

    told: list[str] = []
    pyfuncitem.stash[_chaos] = told
    marked.run(pyfuncitem, marker, lambda: pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem), told)
    body, pyfuncitem.obj = pyfuncitem.obj, lambda **_arguments: None  # it has run
    try:
        return (yield)
    finally:
        pyfuncitem.obj = body


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and (told := item.stash.get(_chaos, None)) is not None:
        del item.stash[_chaos]  # a plugin may run the test again
        if told and report.failed:
            report.sections.append(("broker_chaos", "\n".join(told)))
    return report


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A broker for one test: empty, on free ports. It stops, and its data is removed, when the test ends.
    ``@pytest.mark.broker`` has its options; with ``security="scram"`` clients take ``broker.client_settings``."""
    marker = request.node.get_closest_marker("broker")
    with _running(**_options(marker.args, marker.kwargs) if marker is not None else {}) as running:
        if marker is not None and marker.kwargs.get("security"):
            running.add_user(*_LOGIN)
            running.login = _LOGIN
        yield running


@pytest.fixture(scope="session")
def session_broker() -> "Iterator[Broker]":
    """One broker for the whole session, for tests that can share it because each uses topics with names of its own."""
    with _running() as running:
        yield running


@pytest.fixture
def broker_topic(request: pytest.FixtureRequest, session_broker: "Broker") -> "Iterator[str]":
    """The name of a new topic of ``session_broker``, made from the test's name. The topic is deleted when the test ends."""
    name = f"{re.sub('[^A-Za-z0-9_]+', '-', request.node.name)[:_NAME_MAX].strip('-')}-{next(_numbers)}"
    session_broker.server.kafka.logs.create_topic(name)
    yield name
    logs = session_broker.server.kafka.logs  # the test may have restarted the broker
    if logs.topic(name) is not None:
        logs.delete_topic(name)


def _options(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The broker's settings by the marker's arguments."""
    given = dict(kwargs)
    settings: dict[str, Any] = dict(given.pop("settings", None) or {})
    listeners: str | Sequence[str] | None = given.pop("listeners", None)
    security = given.pop("security", None)
    if args or given or security not in (None, "scram"):
        wrong = ", ".join(map(repr, [*args, *given])) or f"security={security!r}"
        takes = "settings={...}, listeners=[...] and security='scram'"
        pytest.fail(f"@pytest.mark.broker takes {takes}, not {wrong}.", pytrace=False)
    if listeners is not None:
        settings["listeners"] = listeners
    if security is not None:
        urls = settings.get("listeners", _LISTENERS)
        urls = urls.split(",") if isinstance(urls, str) else urls
        settings["listeners"] = [re.sub(r"^\s*kafka(\+ssl)?://", r"kafka+sasl\1://", url) for url in urls]
    return settings


@contextmanager
def _running(**settings: Any) -> "Iterator[Broker]":
    _check_packages()
    from broker.client.embedded import Broker
    from broker.errors import ConfigError
    from broker.log import configure

    # Into pytest's log, which is shown if the test fails. Standard error is the terminal's while pytest reports.
    put_back = configure("warning", "text", write_line=_log.warning)
    try:
        try:
            running = Broker(**settings).start()
        except ConfigError as error:
            pytest.fail(str(error), pytrace=False)
        with closing(running):
            yield running
    finally:
        put_back()


def _check_packages() -> None:
    """Fails the test if modules of the user's have the names of the packages."""
    try:
        import broker.client.embedded  # noqa: F401
    except Exception:  # a foreign module may raise anything
        for package, part in _PACKAGES.items():
            if not _is_there(part):
                pytest.fail(_shadowed(package), pytrace=False)
        raise


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
