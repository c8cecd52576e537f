"""`broker serve` as an operator meets it: ready file, signals, statuses, sentences."""

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from broker.cli.main import COMMANDS
from tests.cli.conftest import Run, Serving, command_line

Serve = Callable[..., Serving]


def end(serving: Serving, number: int = signal.SIGTERM) -> tuple[int, str]:
    """Status and standard error."""
    serving.process.send_signal(number)
    _, errors = serving.process.communicate(timeout=60)
    return serving.process.returncode, errors.decode()


def refusal(serving: Serving) -> str:
    """The one sentence of a broker that will not start."""
    _, errors = serving.process.communicate(timeout=60)
    assert 2 == serving.process.returncode, errors.decode()
    lines = errors.decode().splitlines()
    assert 1 == len(lines), errors.decode()
    assert lines[0].startswith("broker: ")
    assert lines[0].endswith(".")
    return lines[0]


def test_the_ready_file_says_where_clients_can_connect(serve: Serve) -> None:
    serving = serve()
    ready = json.loads(serving.ready_file.read_text())
    assert {"pid", "listeners", "started_ms"} == set(ready)
    assert serving.process.pid == ready["pid"]
    admin = KafkaAdminClient(bootstrap_servers=ready["listeners"]["kafka"])
    assert [] == admin.list_topics()
    admin.close()


def test_systemd_is_notified_of_start_and_stop(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        serving = serve()
        heard = [systemd.recv(1000).decode() for _ in range(2)]
        assert 0 == end(serving)[0]
        heard.append(systemd.recv(1000).decode())
    assert ["STATUS=Opening the data directory", "READY=1", "STOPPING=1"] == [each.splitlines()[0] for each in heard]
    assert f"MAINPID={serving.process.pid}" in heard[1]


def test_a_log_file_is_opened_anew_by_sighup(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    serving = serve("--set", f"logging_file={log}")
    while "broker_started" not in log.read_text():  # it comes after the ready file
        time.sleep(0.02)
    log.rename(tmp_path / "broker.log.1")
    serving.process.send_signal(signal.SIGHUP)
    while not log.exists():
        assert serving.process.poll() is None
        time.sleep(0.02)
    status, errors = end(serving)
    assert (0, "") == (status, errors)
    assert "broker_started" in (tmp_path / "broker.log.1").read_text()
    assert "broker_stopped" in log.read_text()
    assert "logging_file" in refusal(serve("--set", "logging_file=/nowhere/log", wait=False))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(serve: Serve, number: int) -> None:
    serving = serve()
    status, errors = end(serving, number)
    assert 0 == status, errors
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert ["broker_started", "broker_stopping", "broker_stopped"] == [
        event for event in events if event in ("broker_started", "broker_stopping", "broker_stopped")
    ]
    assert not serving.ready_file.exists()


def test_topics_are_there_after_a_restart(serve: Serve) -> None:
    for expected in ([], ["orders"]):
        serving = serve()
        address = json.loads(serving.ready_file.read_text())["listeners"]["kafka"]
        admin = KafkaAdminClient(bootstrap_servers=address)
        assert expected == admin.list_topics()
        if not expected:
            admin.create_topics(["orders"])
        admin.close()
        assert 0 == end(serving)[0]


def test_settings_come_from_file_and_command_line(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text('node_id = 5\ncluster_id = "from-the-file"\nlogging_level = "error"')
    serving = serve("--config", str(tmp_path / "broker.toml"), "--set", "node_id=7")
    address = json.loads(serving.ready_file.read_text())["listeners"]["kafka"]
    admin = KafkaAdminClient(bootstrap_servers=address)
    cluster = admin.describe_cluster()
    admin.close()
    assert ("from-the-file", [7]) == (cluster["cluster_id"], [broker["broker_id"] for broker in cluster["brokers"]])
    assert (0, "") == end(serving)


def test_wrong_setting_is_refused_with_remedy(serve: Serve) -> None:
    assert "did you mean 'network_threads'" in refusal(serve("--set", "network_thread=3", wait=False))


def test_a_missing_settings_file_is_refused(serve: Serve) -> None:
    assert "--config" in refusal(serve("--config", "/nowhere/broker.toml", wait=False))


def test_a_listener_that_no_service_speaks_is_refused(serve: Serve) -> None:
    assert "kafka://" in refusal(serve("--listener", "carrier-pigeon://127.0.0.1:1", wait=False))


def test_unwritable_ready_file_is_refused(serve: Serve) -> None:
    assert "--ready-file" in refusal(serve("--ready-file", "/nowhere/ready.json", wait=False))


def test_older_ready_file_is_removed_before_the_start(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "ready-0.json").write_text("left by a broker that was killed")
    serving = serve("--listener", "carrier-pigeon://127.0.0.1:1", wait=False)
    refusal(serving)
    assert not serving.ready_file.exists()


def test_second_broker_on_same_directory_is_refused(serve: Serve) -> None:
    first = serve()
    assert "data" in refusal(serve(wait=False))
    assert first.process.poll() is None


def test_used_port_is_refused_but_range_goes_on(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal(serve("--listener", f"kafka://127.0.0.1:{port}", wait=False))
        serving = serve("--listener", f"kafka://127.0.0.1:{port}-{port + 50}")
        address = json.loads(serving.ready_file.read_text())["listeners"]["kafka"]
    assert port < int(address.rpartition(":")[2]) <= port + 50


def test_two_listeners_advertise_two_addresses(serve: Serve, run: Run) -> None:
    serving = serve(
        *("--listener", "kafka://127.0.0.1:0"),
        *("--listener", "kafka://127.0.0.1:0?name=inside&advertised=broker:19092"),
    )
    listeners = json.loads(serving.ready_file.read_text())["listeners"]
    assert {"kafka", "inside"} == set(listeners)
    for name, address in listeners.items():
        assert b"answers" in run("health", address).stdout, name


def test_health_asks_a_running_broker(run: Run, environment: dict[str, str]) -> None:
    assert b"Kafka APIs" in run("health", environment["BROKER_BOOTSTRAP_SERVERS"]).stdout


def test_health_suggests_tls_if_listener_hangs_up(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def hang_up() -> None:
            with other.accept()[0] as connection:
                connection.recv(1024)

        thread = threading.Thread(target=hang_up)
        thread.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert b"Does its listener have TLS?" in run("health", address, fails=1).stderr
        thread.join()


def test_health_fails_where_nothing_or_something_else_answers(run: Run) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert b"does not answer" in run("health", address, fails=1).stderr
        other.listen()
        assert b"does not answer" in run("health", address, "--timeout", "0.2", fails=1).stderr
    assert b"host:port" in run("health", "localhost", fails=2).stderr


def test_serving_does_not_load_other_commands_modules() -> None:
    code = (
        "import sys, broker.cli.main, broker.cli.serve, broker.server;"
        "sys.exit(' '.join({'kafka', 'rich', 'prometheus_client', 'structlog', 'asyncio'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"" == result.stderr.strip()


@pytest.mark.parametrize("starts", [True, False])
def test_garbage_collection_is_off_only_during_start(tmp_path: Path, starts: bool) -> None:
    directory = tmp_path / "data"
    if not starts:
        directory.write_text("no directory")
    program = """
import gc, sys
from broker.cli.main import main
from broker.server import BrokerServer
start, seen = BrokerServer.start, []
def noted(server):
    seen.append(gc.isenabled())
    start(server)
    server.request_stop()
BrokerServer.start = noted
sys.argv = ["broker", "serve", "--listener", "kafka://127.0.0.1:0", "--data-dir", sys.argv[1]]
try:
    main()
except SystemExit:
    pass
print(seen, gc.isenabled(), gc.get_freeze_count() > 0)
"""
    command = [sys.executable, "-c", program, str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"[False] True {starts}" == result.stdout.strip(), result.stderr


def test_help_lists_commands_and_suggests_for_typos(run: Run) -> None:
    shown = run("--help").stdout.decode()
    for command in ("serve", "topics", "produce", "consume", "inspect", "health"):
        assert f"  {command} " in shown
    assert b"did you mean 'serve'?" in run("sevre", fails=2).stderr
    assert run("--version").stdout.startswith(b"reactor-broker ")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_starts_without_preparation(run_alone: Run, name: str) -> None:
    """``run`` forks commands from a process that has imported all of them: here each has to find by itself what it imports."""
    anew = subprocess.run(command_line(name, "--help"), capture_output=True, timeout=60, check=True)
    assert b"" == anew.stderr
    assert run_alone(name, "--help").stdout == anew.stdout


def test_terminal_shows_the_next_commands(tmp_path: Path) -> None:
    control, terminal = pty.openpty()
    listeners = ["--listener", "kafka://127.0.0.1:0", "--listener", "http://127.0.0.1:0"]
    process = subprocess.Popen(
        command_line("serve", "--data-dir", str(tmp_path / "data"), *listeners), stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = ""
    while "Ctrl-C" not in shown:
        shown += os.read(control, 65536).decode()
    process.send_signal(signal.SIGINT)
    try:
        while os.read(control, 65536):
            pass
    except OSError:  # Linux's way of saying that the other side has closed
        pass
    os.close(control)
    assert 0 == process.wait(timeout=60)
    (command,) = re.findall(r"echo hello \| (.*)\r\n", shown)
    assert re.fullmatch(r"python -m broker produce greetings -b 127\.0\.0\.1:\d+", command)
    assert "http://127.0.0.1:" in shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_unwritable_output_is_error_but_closed_is_not() -> None:
    def ended(redirected: str) -> subprocess.CompletedProcess[bytes]:
        line = f"{shlex.join(command_line('shuffle', 'id', 'orders'))} {redirected}"
        return subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)

    full = ended(">/dev/full")
    assert (1, b"broker: The output cannot be written: No space left on device.\n") == (full.returncode, full.stderr)
    assert (0, b"") == (ended("<&- >&-").returncode, ended("<&- >&-").stderr)


def test_settings_come_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_CREATE_TOPICS", "orders:3,users")
    monkeypatch.setenv("BROKER_USERS", "alice:hidden-word")
    monkeypatch.setenv("BROKER_LISTENERS", "kafka://127.0.0.1:1")  # the option takes precedence
    options = ("--listener", "kafka://127.0.0.1:0", "--listener", "kafka+sasl://127.0.0.1:0?name=login")
    serving = serve(*options)
    ready = json.loads(serving.ready_file.read_text())
    admin = KafkaAdminClient(
        bootstrap_servers=ready["listeners"]["login"],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice",
        sasl_plain_password="hidden-word",
    )
    assert ["orders", "users"] == sorted(admin.list_topics())
    admin.close()
    status, errors = end(serving)
    assert (0, False) == (status, "hidden-word" in errors)
    monkeypatch.setenv("BROKER_USERS", "alice")
    assert "Write users as NAME:PASSWORD" in refusal(serve(*options, wait=False))
