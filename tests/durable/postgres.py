"""A real PostgreSQL for tests: started in a temporary directory, killed, started again, and gone for certain at the end.

``PostgresServer.installed()`` says whether this is Linux and has one, 15 or later. The environment variable ``POSTGRES_BIN`` may
name the directory of ``postgres`` and ``initdb``. Root's tests start it as the user postgres or nobody, because it refuses root.

``shared_server`` is one for all tests of a process that neither stop nor kill it; ``fresh_schema`` separates them.
"""

import atexit
import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_ports

START_S = 60.0
_USERS = ("postgres", "nobody")
_PR_SET_PDEATHSIG = 1


def _binaries() -> Path | None:
    """The directory of ``postgres`` and ``initdb``."""
    places = [Path(place) for place in [os.environ.get("POSTGRES_BIN", "")] if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: -int(one.parent.name.split(".")[0]))
    found = shutil.which("postgres")
    if found:
        places.append(Path(found).resolve().parent)
    return next((place for place in places if (place / "postgres").exists() and (place / "initdb").exists()), None)


class PostgresServer:
    """``durable``: with fsync, so that what it has committed survives a kill of the machine's, too; without it, tests are
    faster, and commits still survive ``kill``. ``settings`` are of ``postgresql.conf``."""

    def __init__(
        self, *, durable: bool = False, settings: dict[str, str] | None = None, primary: "PostgresServer | None" = None
    ) -> None:
        """``primary``: this one is its standby, until ``promote`` is called."""
        binaries = _binaries()
        assert binaries is not None, "ask installed() before"
        self._binaries = binaries
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="pg-"))
        [self.port] = free_ports(1, self)
        self.user = "broker"
        self.password = "p%w/d"
        try:
            self._make(durable, settings or {}, primary)
            self.start()
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def installed() -> bool:
        return sys.platform == "linux" and _binaries() is not None

    @property
    def url(self) -> str:
        """Of the database ``postgres``, over TCP, with the password."""
        return f"postgresql://{self.user}:p%25w%2Fd@127.0.0.1:{self.port}/postgres"

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """For the test itself."""
        return psycopg.connect(self.url, autocommit=True)

    def start(self) -> None:
        """Returns when it takes connections."""
        assert self._process is None
        log = open(self.directory / "log", "ab")  # noqa: SIM115  # the child has it
        self._process = self._run([str(self._binaries / "postgres"), "-D", str(self.directory / "data")], log)
        log.close()
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL to the server and all its children: as if its machine had lost power, except for what was written."""
        process, self._process = self._process, None
        if process is None:
            return
        family = _stopped(process.pid)
        for pid in reversed(family):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + START_S
        while any(_is_alive(pid) for pid in family[1:]):
            assert time.monotonic() < deadline, "a child of the server does not end"
            time.sleep(0.002)

    def promote(self) -> None:
        """Returns when it takes writes."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def pause(self) -> None:
        """SIGSTOP to the server and all its children. Its kernel goes on to take connections and bytes."""
        assert self._process is not None
        for pid in _stopped(self._process.pid)[1:]:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        for pid in [*_children(self._process.pid), self._process.pid]:  # until it goes on, its children keep their ids
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its directory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once, but it gives its shared memory back
            try:
                self._process.wait(5)
                self._process = None
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self, durable: bool, settings: dict[str, str], primary: "PostgresServer | None") -> None:
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        if primary is not None:
            self._copy(primary)
        elif _templates:
            subprocess.run(["cp", "-a", str(_templates[0]), str(self.directory / "data")], check=True)
        else:
            self._make_cluster()
            template = Path(tempfile.mkdtemp(prefix="pg-template-"))
            atexit.register(shutil.rmtree, template, ignore_errors=True)
            subprocess.run(["cp", "-a", str(self.directory / "data"), str(template / "data")], check=True)
            _templates.append(template / "data")
        own = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "fsync": "on" if durable else "off",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",
            "recovery_init_sync_method": "syncfs",  # a start after a kill need not open every file
            "max_connections": "60",
            **settings,
        }
        lines = "".join(f"{key} = '{value}'\n" for key, value in own.items())
        with open(self.directory / "data" / "postgresql.conf", "a") as file:
            file.write(lines)

    def _copy(self, primary: "PostgresServer") -> None:
        command = [str(self._binaries / "pg_basebackup"), "-D", str(self.directory / "data"), "-R", "-c", "fast"]
        with open(self.directory / "log", "ab") as log:
            done = self._run([*command, "-d", primary.url], log).wait()
            assert done == 0, (self.directory / "log").read_text()

    def _make_cluster(self) -> None:
        secret = self.directory / "secret"
        secret.write_text(self.password)
        if self._account is not None:
            os.chown(secret, self._account.pw_uid, self._account.pw_gid)
        command = [str(self._binaries / "initdb"), "-D", str(self.directory / "data"), "-U", self.user, "-E", "UTF8"]
        command += ["--locale=C", "--no-sync", "--no-instructions", "--auth=scram-sha-256", f"--pwfile={secret}"]
        with open(self.directory / "log", "ab") as log:
            assert self._run(command, log).wait() == 0, (self.directory / "log").read_text()

    def _run(self, command: list[str], log: object) -> "subprocess.Popen[bytes]":
        account = self._account
        return subprocess.Popen(
            command,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,  # type: ignore[arg-type]  # an open file
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # it only calls the kernel
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )


class SynchronousPair:
    """A primary, and a standby that has what the primary has acknowledged. ``promote`` after the primary's end."""

    def __init__(self) -> None:
        self.primary = PostgresServer(durable=True)
        self.standby = PostgresServer(durable=True, primary=self.primary)
        with self.primary.connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + START_S
            while connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() != [("sync",)]:
                assert time.monotonic() < deadline, "the standby does not become synchronous"
                time.sleep(0.01)

    @property
    def url(self) -> str:
        """Of both."""
        host = f"127.0.0.1:{self.primary.port}"
        return self.primary.url.replace(host, f"{host},127.0.0.1:{self.standby.port}")

    def stop(self) -> None:
        self.standby.stop()
        self.primary.stop()


_shared: list[PostgresServer] = []
_templates: list[Path] = []  # what initdb makes, to be copied: for every server after the first one
_numbers = itertools.count(1)


def shared_server() -> PostgresServer:
    """One without fsync for this process. Skips the test if the machine has none."""
    if not PostgresServer.installed():
        pytest.skip("PostgreSQL is not installed")
    if not _shared:
        _shared.append(PostgresServer())
        atexit.register(_shared[0].stop)
    return _shared[0]


def fresh_schema() -> str:
    """The name of a schema that nobody has used."""
    return f"test_{next(_numbers)}"


def _account() -> "pwd.struct_passwd | None":
    """Whom the server runs as, if not as us."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("PostgreSQL does not run as root, and there is neither postgres nor nobody")


def _die_with_parent() -> None:
    """In the new process: if the tests are killed, the server ends at once, and its children with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT))


def _stopped(server: int) -> list[int]:
    """Stop the server, and return its id and those of its children: it makes no other one, and they keep their ids."""
    os.kill(server, signal.SIGSTOP)
    os.waitid(os.P_PID, server, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # the signal takes effect a little later
    return [server, *_children(server)]


def _children(parent: int) -> list[int]:
    stats = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return [pid for pid, stat in stats.items() if stat and int(stat[1]) == parent]


def _is_alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """State, parent, and so on; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
