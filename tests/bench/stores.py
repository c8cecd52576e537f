"""What the durable scenarios stand on: a PostgreSQL with fsync, object stores, and what these spend.

Each broker, and each journal of the scenario's own, has a schema and a prefix for itself.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.frame import Options
from tests.bench.process import BrokerProcess, OwnProcess
from tests.durable.postgres import PostgresServer
from tests.durable.s3_server import BUCKET, SeaweedServer

# How long something may take that has to come.
PATIENCE_S = 60.0


class Stores:
    """PostgreSQL, object stores, and brokers on them, each with a schema and a prefix of its own."""

    def __init__(self, stack: ExitStack, options: Options) -> None:
        assert PostgresServer.installed(), "install PostgreSQL, 15 or newer"
        self._stack = stack
        self.directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory))
        self.postgres = PostgresServer(durable=True)
        stack.callback(self.postgres.stop)
        self.connection = stack.enter_context(self.postgres.connect())
        self._number = 0

    def objects(self, kind: str) -> str:
        """The URL of a new place in a store: ``file`` or ``s3``, which is SeaweedFS."""
        self._number += 1
        if kind == "file":
            directory = Path(self.directory, f"objects-{self._number}")
            directory.mkdir()
            return f"file://{directory}"
        if "AWS_ENDPOINT_URL" not in os.environ:
            server = SeaweedServer()
            self._stack.callback(server.stop)
            server.start()
            os.environ.update(server.environment)
            self._stack.callback(lambda: [os.environ.pop(name) for name in server.environment])
        return f"s3://{BUCKET}/bench-{self._number}"

    def new_schema(self) -> str:
        self._number += 1
        return f"bench_{self._number}"

    def settings(self, objects: str, schema: str = "") -> tuple[str, ...]:
        """Of a broker. A new schema if none is named."""
        return (
            f"catalogue={self.postgres.url}",
            f"objects={objects}",
            f"catalogue_schema={schema or self.new_schema()}",
        )

    def broker(self, kind: str = "file", *settings: str) -> BrokerProcess:
        return BrokerProcess(*self.settings(self.objects(kind)), *settings, directory=self.directory)

    def schema_of(self, broker: BrokerProcess) -> str:
        return next(setting.partition("=")[2] for setting in broker.settings if setting.startswith("catalogue_schema="))

    def number(self, broker: BrokerProcess) -> int:
        """Of the last row in this broker's journal."""
        ((number,),) = self.connection.execute(f"SELECT number FROM {self.schema_of(broker)}.owner").fetchall()
        assert isinstance(number, int)
        return number

    def wait_for_sessions(self, application: str, number: int) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        deadline = time.perf_counter() + PATIENCE_S
        while self.connection.execute(query, (application,)).fetchall() != [(number,)]:
            assert time.perf_counter() < deadline, f"{application} has not come"
            time.sleep(0.01)

    def transactions(self) -> int:
        ((count,),) = self.connection.execute(
            "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
        ).fetchall()
        return int(str(count))


@contextmanager
def opened(options: Options) -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack, options)


class Backends:
    """The CPU of PostgreSQL's backends that work for brokers, and of its other processes."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def cpu_s(self) -> float:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'broker%'"
        return sum(_cpu_s(int(str(pid))) for (pid,) in self._stores.connection.execute(query).fetchall())


def _cpu_s(pid: int) -> float:
    process = OwnProcess()
    process.pid = pid
    try:
        return process.cpu_s()
    except FileNotFoundError:
        return 0.0
