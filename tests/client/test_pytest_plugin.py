"""The fixtures that come with the package, in a pytest session of a user's own."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

USERS_TESTS = """
import sys

from kafka import KafkaConsumer, KafkaProducer

EARLIEST = dict(auto_offset_reset="earliest", consumer_timeout_ms=10000)
addresses = []


def test_broker_is_not_loaded_before_use():
    assert "broker.server" not in sys.modules


def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send("orders", b"one").get(10)
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
    environment = dict(os.environ, PYTHONPATH=str(site))
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
        del environment["PYTHONPATH"]

    def run(folder: Path, *arguments: str, command: tuple[str, ...] = ("-m", "pytest")) -> tuple[int, str]:
        # Without this project's settings: pytest loads the plugin because the package is installed.
        options = ["-q", "--rootdir", str(folder), "-p", "no:cacheprovider", *arguments]
        result = subprocess.run(
            [sys.executable, *command, *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
            timeout=120,
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
