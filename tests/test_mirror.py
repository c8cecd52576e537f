"""Every module has its own test file in the mirrored place, or the last line of its docstring says where it is tested:
``Tests: tests/x/test_y.py.``, several paths with commas between them.
"""

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.test_floors import ROOT, modules

# Neither yet. Remove a module that has got one of the two, and add none.
WITHOUT_TESTS: set[str] = {
    "broker.cli.client",
    "broker.cli.consume",
    "broker.cli.health",
    "broker.cli.main",
    "broker.cli.output",
    "broker.cli.produce",
    "broker.cli.segment_check",
    "broker.client.at_exit",
    "broker.client.kafka.columns.murmur2",
    "broker.client.kafka.columns.record_fields",
    "broker.client.kafka.columns.record_walk",
    "broker.client.kafka.columns.varints",
    "broker.client.kafka.connection",
    "broker.client.kafka.errors",
    "broker.client.kafka.offsets",
    "broker.client.kafka.retry",
    "broker.client.kafka.transaction",
    "broker.client.kafka.values",
    "broker.client.shuffle.admin",
    "broker.client.shuffle.errors",
    "broker.client.shuffle.io.connection",
    "broker.client.shuffle.io.liveness",
    "broker.client.shuffle.io.partition_client",
    "broker.client.shuffle.reading.buffer_or_event",
    "broker.client.shuffle.reading.checkpointed_input_gate",
    "broker.client.shuffle.reading.input_channel",
    "broker.client.shuffle.reading.reader",
    "broker.client.shuffle.reading.remote_input_channel",
    "broker.client.shuffle.reading.union_input_gate",
    "broker.client.shuffle.writing.flusher",
    "broker.client.shuffle.writing.partition_writer",
    "broker.errors",
    "broker.kafka.api",
    "broker.kafka.checks",
    "broker.kafka.configs.changes",
    "broker.kafka.configs.group_settings",
    "broker.kafka.configs.resources",
    "broker.kafka.context",
    "broker.kafka.groups.group",
    "broker.kafka.groups.offsets",
    "broker.kafka.groups.rebalance",
    "broker.kafka.groups.registry",
    "broker.kafka.groups.room",
    "broker.kafka.groups.roster",
    "broker.kafka.groups.values",
    "broker.kafka.handlers.add_offsets_to_txn",
    "broker.kafka.handlers.add_partitions_to_txn",
    "broker.kafka.handlers.api_versions",
    "broker.kafka.handlers.describe_producers",
    "broker.kafka.handlers.describe_transactions",
    "broker.kafka.handlers.end_txn",
    "broker.kafka.handlers.fetch",
    "broker.kafka.handlers.list_transactions",
    "broker.kafka.handlers.txn_offset_commit",
    "broker.kafka.listener_names",
    "broker.kafka.service",
    "broker.kafka.transactions.entry",
    "broker.kafka.transactions.marker_writer",
    "broker.kafka.transactions.registry",
    "broker.kafka.transactions.rows",
    "broker.kafka.transactions.unknown",
    "broker.network.outbox",
    "broker.network.service",
    "broker.network.unsent",
    "broker.runtime.clock",
    "broker.runtime.descriptors",
    "broker.runtime.entropy",
    "broker.runtime.forks",
    "broker.shuffle.assembly",
    "broker.shuffle.partition.result_partition",
    "broker.shuffle.partition.spill_file",
    "broker.shuffle.partitions",
    "broker.shuffle.service",
    "broker.shuffle.serving.credit",
    "broker.shuffle.serving.request_queue",
    "broker.shuffle.serving.writers",
    "broker.shuffle.spill.spill_index",
    "broker.spark._pyspark_broker",
    "broker.spark.errors",
    "broker.spark.exchanges.batches",
    "broker.spark.exchanges.driver",
    "broker.spark.exchanges.map_task",
    "broker.spark.exchanges.progress",
    "broker.spark.exchanges.reduce_task",
    "broker.spark.sink.save_mode",
    "broker.spark.sink.stream_sink",
    "broker.spark.source.resolve",
    "broker.spark.source.sizes",
    "broker.storage.log.append_rules",
    "broker.storage.log.inspection",
    "broker.storage.recovery.replay",
    "broker.storage.segments.offset_index",
    "broker.storage.segments.segment",
    "broker.storage.segments.time_index",
    "broker.storage.segments.txn_index",
    "protocol.errors",
    "protocol.kafka.errors",
    "protocol.kafka.records.record_scan",
    "protocol.kafka.schema.fields",
    "protocol.kafka.schema.schema_reader",
    "protocol.kafka.schema.schema_writer",
    "protocol.shuffle.java.java_stream",
    "protocol.shuffle.writer_values",
}

_TESTS = re.compile(r"^Tests: (?P<paths>\S+(?:,\s+\S+)*)\.\Z", re.MULTILINE)


def mirrored(module: str) -> str:
    """Where the tests of a module belong."""
    *folders, name = module.removeprefix("broker.").split(".")
    return str(PurePosixPath("tests", *folders, f"test_{name}.py"))


def named_in_docstring(source: str) -> list[str]:
    """The paths that the last line of a module's docstring names."""
    match = _TESTS.search((ast.get_docstring(ast.parse(source)) or "").strip())
    return re.split(r",\s+", match["paths"]) if match else []


def paths_of_modules() -> dict[str, str]:
    """Name -> source, without the files that only make a folder a package or run one."""
    packages = {name.rpartition(".")[0] for name, _ in modules()}
    return {
        name: source for name, source in modules() if name not in packages and "." in name and name != "broker.__main__"
    }


def test_every_module_has_tests_of_its_own_or_says_where_they_are() -> None:
    without = {
        name
        for name, source in paths_of_modules().items()
        if not (ROOT / mirrored(name)).exists() and not named_in_docstring(source)
    }
    assert set() == without - WITHOUT_TESTS, "write the test file, or say in the docstring where the module is tested"
    assert set() == WITHOUT_TESTS - without, "they have tests now, or are no more: remove them from WITHOUT_TESTS"


def test_every_path_that_a_docstring_names_exists() -> None:
    wrong = [
        f"{name}: {path}"
        for name, source in modules()
        for path in named_in_docstring(source)
        if not (ROOT / path).is_file()
    ]
    assert [] == wrong


@pytest.mark.parametrize(
    ("docstring", "paths"),
    [
        ("It does.", []),
        ("It does.\n\nTests: tests/x/test_y.py.", ["tests/x/test_y.py"]),
        ("It does.\n\nTests: tests/x/test_y.py,\ntests/z/test_w.py.\n", ["tests/x/test_y.py", "tests/z/test_w.py"]),
        ("Tests: tests/x/test_y.py, and more.", []),
        ("Tests: tests/x/test_y.py.\n\nMore.", []),
    ],
)
def test_the_last_line_of_a_docstring_names_the_tests(docstring: str, paths: list[str]) -> None:
    assert paths == named_in_docstring(f'"""{docstring}"""')


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("broker.network.mute", "tests/network/test_mute.py"),
        ("broker.server", "tests/test_server.py"),
        ("protocol.kafka.records.batch", "tests/protocol/kafka/records/test_batch.py"),
    ],
)
def test_the_tests_mirror_the_tree(module: str, path: str) -> None:
    assert path == mirrored(module)
