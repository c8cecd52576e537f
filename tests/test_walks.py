"""How many files an operation runs through, so that a path does not grow unseen."""

from collections.abc import Iterator

import pytest

from tests import walks
from tests.walks import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with walks.world() as world:
        yield world


# The figures of today. Lower them with each change that makes a path shorter; ``python -m tests.walks`` prints all.
@pytest.mark.parametrize(
    ("operation", "most_files"), [("produce", 19), ("produce-all", 27), ("join", 45), ("send", 49)]
)
def test_operation_runs_through_few_files(world: World, operation: str, most_files: int) -> None:
    files = walks.files(world.measure(operation))
    assert len(files) <= most_files, "\n".join([f"{operation} runs through {len(files)} files:", *files])


def test_walk_lists_functions_in_order(world: World) -> None:
    functions = [name for _, name in world.measure("produce")]
    steps = ["Receiving.receive", "KafkaService.handle", "SystemFile.pwrite", "ProcessorConnection.flush"]
    assert steps == [name for name in functions if name in steps]


@pytest.mark.parametrize("operation", ["produce", "produce-all"])
def test_usual_produce_passes_its_handler(world: World, operation: str) -> None:
    assert ("broker/kafka/handlers/produce.py", "_handle") in world.measure(operation)
