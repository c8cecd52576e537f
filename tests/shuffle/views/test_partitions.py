"""Result partitions over HTTP, with credit and backlog."""

from typing import Any

from broker.client import InputGate, ShuffleWriter, round_robin
from broker.client.shuffle.names import partition_id
from tests.http.api.harness import Api, api_broker, differences, documented
from tests.waiting import wait_for

LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", "http://127.0.0.1:0")


def shown(api: Api) -> dict[str, Any]:
    (partition,) = api.get("/shuffle")["partitions"]
    return dict(partition)


def test_without_a_shuffle_there_is_nothing() -> None:
    with api_broker() as api:
        assert 404 == api.ask("/api/v1/shuffle")[0]


def test_partition_shows_writer_readers_and_their_blockers() -> None:
    name = "map-1"
    with api_broker(listeners=LISTENERS, shuffle_pipelined_bytes=1 << 20) as api:
        assert [] == api.get("/shuffle")["partitions"]
        writer = ShuffleWriter(api.broker.shuffle_address, name, 2, owner="etl")
        with writer, writer.records(round_robin()) as out:
            for _ in range(10):
                out.write(b"x" * 10_000)
            out.flush()
            wait_for(lambda: shown(api)["buffers"] > 0)
            partition = shown(api)
            assert [] == differences(documented("/api/v1/shuffle?limit=1"), api.get("/shuffle"))
            assert (partition_id(name).hex(), "PIPELINED", "OPEN", "etl", 2) == tuple(
                partition[key] for key in ("id", "type", "state", "owner", "subpartitions")
            )
            assert (False, None, [], 0) == tuple(
                partition[key] for key in ("writer_blocked", "writer_blocked_by", "readers", "reader_count")
            )
            assert partition["writer"]["credit"] > 0
            with InputGate([(api.broker.shuffle_address, name, 0)]) as gate:
                wait_for(lambda: shown(api)["readers"])
                (reader,) = shown(api)["readers"]
                assert (0, 1, False) == (reader["subpartition"], reader["subpartitions"], reader["finished"])
                assert [] == differences(documented("/api/v1/shuffle?limit=1"), api.get("/shuffle"))
                assert gate.poll() is not None
                for _ in range(5):
                    out.write(b"x" * 10_000)


def test_writer_with_slow_readers_is_blocked() -> None:
    with api_broker(listeners=LISTENERS, shuffle_pipelined_bytes=1 << 20) as api:
        writer = ShuffleWriter(api.broker.shuffle_address, "map-2", 1)
        writer.open(30)

        def blocked() -> bool:
            writer.try_push(0, b"x" * 30_000)
            return bool(shown(api)["writer_blocked"])

        wait_for(blocked)
        partition = shown(api)
        assert ("readers", 0) == (partition["writer_blocked_by"], partition["writer"]["credit"])
        assert partition["unsent_bytes"] >= 1 << 20
        writer.fail("enough")
        writer.close()
