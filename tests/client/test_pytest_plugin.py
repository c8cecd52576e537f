"""The fixtures and the marker that come with the package, in a pytest session of a user's own."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.broker_process import runs

ROOT = Path(__file__).parent.parent.parent

USERS_TESTS = """
import sys

from kafka import KafkaConsumer, KafkaProducer

EARLIEST = dict(auto_offset_reset="earliest", consumer_timeout_ms=60000)
addresses = []


def test_broker_is_not_loaded_before_use():
    assert "broker.server" not in sys.modules


def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send("orders", b"one").get(60)
    producer.close()
    consumer = KafkaConsumer("orders", bootstrap_servers=broker.bootstrap_servers, **EARLIEST)
    assert b"one" == next(consumer).value
    consumer.close()


def test_every_test_has_a_broker_of_its_own(broker):
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    assert set() == consumer.topics()
    consumer.close()


def test_a_session_has_one(session_broker):
    addresses.append(session_broker.bootstrap_servers)


def test_a_session_has_the_same_one(session_broker):
    assert [session_broker.bootstrap_servers] == addresses
"""

MARKED_TESTS = """
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient


def delivered(settings, patience_s=60):
    producer = Producer(settings)
    producer.produce("orders", b"one")
    return 0 == producer.flush(patience_s)


@pytest.mark.broker(settings={"num_partitions": 3})
def test_settings(broker):
    assert delivered(broker.client_settings)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    assert 3 == len(admin.describe_topics(["orders"])[0]["partitions"])
    admin.close()


@pytest.mark.broker(listeners="kafka://127.0.0.1:0, pulsar://127.0.0.1:0")
def test_listeners(broker):
    assert ["kafka", "pulsar"] == list(broker.server.listeners)


@pytest.mark.broker(security="scram")
class TestWithLogin:
    def test_client_settings_log_in(self, broker):
        assert delivered(broker.client_settings)
        assert not delivered({**broker.client_settings, "sasl.password": "another", "log_level": 0}, 5)
        assert not delivered({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}, 5)

    @pytest.mark.broker(settings={"num_partitions": 2})
    def test_nearest_marker_counts(self, broker):
        assert delivered({"bootstrap.servers": broker.bootstrap_servers})

    @pytest.mark.broker(security="scram", listeners=["pulsar://127.0.0.1:0", "kafka://127.0.0.1:0"])
    def test_listener_of_kafka_gets_login(self, broker):
        assert ["pulsar", "kafka+sasl"] == list(broker.server.listeners)
        assert delivered(broker.client_settings)
"""

TOPIC_TESTS = """
import os

import pytest

names = []


def topics(broker):
    return {topic.name for topic in broker.server.kafka.logs.topics()}


@pytest.mark.parametrize("text", ["a b/c", "x" * 300])
def test_orders(broker_topic, session_broker, text):
    assert {broker_topic} == topics(session_broker)
    assert broker_topic.startswith("test_orders-" + text[0])
    names.append(broker_topic)


def test_deletes_topic(broker_topic, session_broker):
    session_broker.server.kafka.logs.delete_topic(broker_topic)


def test_restarts_broker(broker_topic, session_broker):
    session_broker.stop()
    session_broker.start()


def test_all_are_gone(session_broker):
    assert 2 == len(set(names))
    assert set() == topics(session_broker)
"""

LOGGING_TESTS = """
from broker.log import get_logger


def test_passes(broker):
    get_logger("server").warning("this_is_fine")


def test_fails(broker):
    get_logger("server").warning("this_is_odd", topic="orders")
    assert False
"""

PARALLEL_TESTS = """
import os
import pathlib
import time

import pytest
from confluent_kafka import Producer


@pytest.mark.parametrize("number", range(12))
def test_on_one_of_four_workers(session_broker, broker_topic, broker, number):
    for running in (session_broker, broker):
        producer = Producer(running.client_settings)
        producer.produce(broker_topic, b"one")
        assert 0 == producer.flush(60)
    with open("seen", "a") as file:
        file.write(f"{os.getpid()} {session_broker.bootstrap_servers}\\n")
    while len({line.split()[0] for line in pathlib.Path("seen").read_text().splitlines()}) < 4:
        time.sleep(0.05)  # so that each of the workers gets a test
"""

OTHER_TESTS = """
import sys


def test_nothing_of_the_package_is_loaded():
    assert not [name for name in sys.modules if name.partition(".")[0] in ("broker", "protocol")]


def test_something_of_the_users():
    assert 2 == 1 + 1
"""
NEEDS_A_BROKER = """

def test_with_a_broker(broker):
    assert broker.bootstrap_servers
"""
NEEDS_ITS_OWN = """

def test_with_the_users_module():
    import {0}

    assert "the user's" == {0}.name
"""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PLUGIN = PROJECT["project"]["entry-points"]["pytest11"]["reactor_broker"]

# Runs pytest in a folder, as `python -m pytest` with these arguments; returns its exit code and output.
Run = Callable[..., tuple[int, str]]


def unpacked_by_hand(site: Path) -> None:
    """The contents of the wheel by pyproject.toml: packages, forced files, entry points."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        (site / package).symlink_to(ROOT / package)
    for source, target in wheel["force-include"].items():
        (site / target).write_text((ROOT / source).read_text(encoding="utf-8"), encoding="utf-8")
    info = site / "reactor_broker-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reactor-broker\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\nreactor_broker = {PLUGIN}\n")


def unpacked_wheel(site: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(site / "wheel")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = (site / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)


@pytest.fixture(params=["by hand", "wheel", "in place"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """With the package installed by hand, from a wheel, or as it is installed where these tests run (in place, by `make`)."""
    site = tmp_path / "site"
    site.mkdir()
    if request.param == "by hand":
        unpacked_by_hand(site)
    elif request.param == "wheel":
        if importlib.util.find_spec("hatchling") is None:
            pytest.skip("hatchling, which builds the wheel, is not installed")
        unpacked_wheel(site)
    else:
        installed = [
            entry_point.value
            for entry_point in importlib.metadata.entry_points(group="pytest11", name="reactor_broker")
        ]
        if installed != [PLUGIN]:
            pytest.skip("what is installed here is older than pyproject.toml")
        return runner(None)
    return runner(site)


@pytest.fixture
def run_by_hand(tmp_path: Path) -> Run:
    """For what does not depend on the way in which the package is installed."""
    site = tmp_path / "site"
    site.mkdir()
    unpacked_by_hand(site)
    return runner(site)


def runner(site: Path | None) -> Run:
    environment = dict(os.environ)
    if site is None:
        environment.pop("PYTHONPATH", None)
    else:
        environment["PYTHONPATH"] = str(site)

    def run(
        folder: Path,
        *arguments: str,
        command: tuple[str, ...] = ("-m", "pytest"),
        timeout: float = 240,
        **variables: str,
    ) -> tuple[int, str]:
        # Without this project's settings: pytest loads the plugin because the package is installed.
        options = ["-q", "--rootdir", str(folder), "-p", "no:cacheprovider", *arguments]
        result = subprocess.run(
            [sys.executable, *command, *options],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            check=False,
            timeout=timeout,
            text=True,
        )
        return result.returncode, result.stdout + result.stderr

    return run


@pytest.fixture
def users(tmp_path: Path) -> Path:
    folder = tmp_path / "users"
    folder.mkdir()
    return folder


def test_user_test_gets_a_broker_by_fixture_name(run: Run, users: Path) -> None:
    (users / "test_orders.py").write_text(USERS_TESTS)
    status, output = run(users, "test_orders.py")
    assert 0 == status, output
    assert "5 passed" in output


@pytest.mark.parametrize("name", ["broker.py", "broker/__init__.py", "protocol.py", "protocol/__init__.py"])
def test_user_module_of_same_name_is_harmless(request: pytest.FixtureRequest, run: Run, users: Path, name: str) -> None:
    if name != "broker.py" and request.node.callspec.params["run"] != "by hand":
        pytest.skip("one name is enough for each way of installing")
    path = users / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('name = "the user\'s"\n')
    package = name.removesuffix(".py").partition("/")[0]
    (users / "test_users.py").write_text(OTHER_TESTS + NEEDS_ITS_OWN.format(package))
    status, output = run(users)
    assert 0 == status, output
    assert "3 passed" in output
    # Only the test that needs a broker has an error, of a single sentence.
    (users / "test_users.py").write_text(OTHER_TESTS + NEEDS_A_BROKER)
    status, output = run(users)
    assert 1 == status, output
    assert "2 passed, 1 error" in output
    (sentence,) = [line for line in output.splitlines() if line.startswith("This fixture needs")]
    assert f"the package {package!r} of reactor-broker, but Python finds {path} under that name: rename it" in sentence
    assert "Traceback" not in output
    # As the sentence says: without the directory on sys.path, the test gets a broker.
    script = "import sys, pytest; sys.path.remove(''); sys.exit(pytest.main(sys.argv[1:]))"
    status, output = run(users, "--import-mode=importlib", command=("-c", script))
    assert 0 == status, output
    assert "3 passed" in output


def test_folder_without_package_is_harmless(run: Run, users: Path) -> None:
    for name in ("broker", "protocol"):
        (users / name).mkdir()
        (users / name / "notes.txt").write_text("the user's")
    (users / "test_users.py").write_text(OTHER_TESTS + NEEDS_A_BROKER)
    status, output = run(users)
    assert 0 == status, output
    assert "3 passed" in output


def test_raising_user_module_is_named(run: Run, users: Path) -> None:
    (users / "broker.py").write_text("raise RuntimeError('not today')\n")
    (users / "test_users.py").write_text(OTHER_TESTS + NEEDS_A_BROKER)
    status, output = run(users)
    assert 1 == status, output
    assert f"but Python finds {users / 'broker.py'} under that name" in output


def test_marker_has_options_of_broker(run_by_hand: Run, users: Path) -> None:
    (users / "test_marked.py").write_text(MARKED_TESTS)
    status, output = run_by_hand(users, "--strict-markers")
    assert 0 == status, output
    assert "5 passed" in output


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("security='kerberos'", "takes settings={...}, listeners=[...] and security='scram', not security='kerberos'."),
        ("partitions=3", "takes settings={...}, listeners=[...] and security='scram', not 'partitions'."),
        ("'scram'", "takes settings={...}, listeners=[...] and security='scram', not 'scram'."),
        ("settings={'num_partition': 3}", "There is no setting 'num_partition' (in the arguments); did you mean"),
    ],
)
def test_wrong_option_is_one_sentence(run_by_hand: Run, users: Path, marker: str, sentence: str) -> None:
    (users / "test_marked.py").write_text(
        f"import pytest\n\n\n@pytest.mark.broker({marker})\ndef test_with_a_broker(broker):\n    pass\n"
    )
    status, output = run_by_hand(users)
    assert 1 == status, output
    assert sentence in output
    assert "Traceback" not in output
    assert "pytest_plugin.py" not in output


def test_every_test_has_its_topic(run_by_hand: Run, users: Path) -> None:
    (users / "test_topics.py").write_text(TOPIC_TESTS)
    status, output = run_by_hand(users)
    assert 0 == status, output
    assert "5 passed" in output


@pytest.mark.parametrize("option", ["--capture=fd", "--capture=no"])
def test_only_failing_test_shows_brokers_log(run_by_hand: Run, users: Path, option: str) -> None:
    (users / "test_logging.py").write_text(LOGGING_TESTS)
    status, output = run_by_hand(users, option)
    assert 1 == status, output
    assert "this_is_fine" not in output
    (line,) = [line for line in output.splitlines() if "this_is_odd" in line and "get_logger" not in line]
    assert line.endswith("this_is_odd [server] topic=orders")
    assert "Captured log call" in output


def test_four_workers_leave_nothing(run_by_hand: Run, users: Path, tmp_path: Path) -> None:
    (users / "test_parallel.py").write_text(PARALLEL_TESTS)
    directories = tmp_path / "directories"
    directories.mkdir()
    status, output = run_by_hand(users, "-n", "4", TMPDIR=str(directories))
    assert 0 == status, output
    assert "12 passed" in output
    seen = [line.split() for line in (users / "seen").read_text().splitlines()]
    # A broker for each worker, and for all tests of it.
    assert 4 == len({worker for worker, _ in seen}) == len({address for _, address in seen})
    assert [] == list(directories.glob("broker-*"))
    assert not any(runs(int(worker)) for worker, _ in seen)


def test_guide_shows_tests_that_pass(run_by_hand: Run, users: Path) -> None:
    section = (ROOT / "docs" / "TESTING.md").read_text("utf-8").partition("\n## pytest\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (users / "test_guide.py").write_text("\n".join(blocks))
    status, output = run_by_hand(users, "--strict-markers")
    assert 0 == status, output
    assert "4 passed" in output
