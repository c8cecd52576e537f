"""What of the settings is each node's own. What nodes do is in tests/process/test_nodes.py."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from broker.cluster.nodes import Nodes
from broker.config import BrokerConfig
from broker.config.listener import parse_listener
from broker.errors import BrokerError, ConfigError, Fenced, StorageError
from broker.metadata.shared_wire import encode
from broker.part import Reloads
from broker.runtime.channel import Channel, ChannelListener, connect
from broker.runtime.disk import SystemDisk
from broker.server.member import Member, Watch
from broker.server.supervisor import check_listeners

Watched = tuple[Channel, Callable[[Reloads], Watch]]


def adapted(place: int, *urls: str, ports: dict[str, int] | None = None, **advertised: str) -> BrokerConfig:
    config = BrokerConfig(
        data_dir="/data", node_id=7, listeners=tuple(map(parse_listener, urls)), advertised_listeners=advertised
    )
    return Member(place, 4, "/data/.nodes.socket", ports or {}).adapt(config)


def urls(config: BrokerConfig) -> list[str]:
    return [str(listener) for listener in config.listeners]


def test_each_node_has_a_number_and_a_directory_of_its_own() -> None:
    assert [(7, "/data/nodes/0"), (10, "/data/nodes/3")] == [
        (config.node_id, config.data_dir) for config in (adapted(0, "kafka://h:1"), adapted(3, "kafka://h:1"))
    ]


def test_ports_follow_on_those_of_the_first_node() -> None:
    assert ["kafka://h:9094", "http://h:8082"] == urls(adapted(2, "kafka://h:9092", "http://h:8080"))


def test_advertised_ports_follow_too() -> None:
    config = adapted(2, "kafka://h:1?advertised=there:9092", "http://h:2", http="[::1]:80")
    assert ("there", 9094) == config.advertised_address("kafka")
    assert ("::1", 82) == config.advertised_address("http")


def test_a_node_that_is_started_again_has_the_free_port_that_it_had() -> None:
    assert ["kafka://h:0"] == urls(adapted(2, "kafka://h:0"))
    assert ["kafka://h:5000"] == urls(adapted(2, "kafka://h:0", ports={"kafka": 5000}))


def test_of_a_range_of_ports_each_node_takes_what_is_free() -> None:
    assert ["kafka://h:9092-9099"] == urls(adapted(2, "kafka://h:9092-9099"))


def test_a_port_beyond_the_last_one_is_refused() -> None:
    assert ["kafka://h:65535"] == urls(adapted(1, "kafka://h:65534"))
    with pytest.raises(ConfigError, match="node 3 would have 65536"):
        adapted(2, "kafka://h:65534")


def test_settings_stay_as_they_are_otherwise() -> None:
    config = adapted(1, "kafka://h:1")
    own = dict.fromkeys(("node_id", "data_dir", "listeners", "advertised_listeners"))
    first = attrs.asdict(adapted(0, "kafka://h:1"), recurse=False) | own
    assert first == attrs.asdict(config, recurse=False) | own


@pytest.mark.parametrize("name", ["nodes", "Nodes"])
def test_no_listener_has_the_name_of_that_of_the_nodes_nor_its_settings(name: str) -> None:
    with pytest.raises(ConfigError, match="another name"):
        check_listeners(BrokerConfig(listeners=(parse_listener(f"kafka://h:1?name={name}"),)))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """The end of the process that has the catalogue, and what makes the watch of a node at the other one."""
    listener = ChannelListener(f"{tmp_path}/socket")
    channel = connect(f"{tmp_path}/socket")
    catalogue = listener.accept()
    member = Member(0, 2, "", {})
    logs = SimpleNamespace(nodes=Nodes(0, 2, 1, str(tmp_path), SystemDisk(), member), generation=0)  # type: ignore[arg-type]
    yield catalogue, lambda reloads: Watch(lambda: channel, logs, reloads, {}, None)  # type: ignore[arg-type]
    for end in (catalogue, channel, listener):
        end.close()


def test_others_wait_until_a_change_is_in_force_but_not_for_one_that_is_refused(watched: Watched) -> None:
    catalogue, watch_with = watched
    failures: list[BrokerError] = [ConfigError("never"), StorageError("not now")]
    done: list[str] = []

    def reload(table: str) -> None:
        if failures:
            raise failures.pop()
        done.append(table)

    reloads = {table: [partial(reload, table)] for table in ("acls", "quotas")}
    watch = watch_with(reloads)
    assert catalogue.receive(10) is not None  # it watches
    catalogue.send(encode(["changed", 7, ["acls"]]))
    watch.step(None)
    assert catalogue.receive(0) is None
    catalogue.send(encode(["changed", 8, ["quotas"]]))
    watch.step(None)
    assert encode(["applied", 8]) == catalogue.receive(10)
    assert ["quotas"] == done
    failures = [StorageError("not now")]
    catalogue.send(encode(["changed", 9, ["acls"]]))
    watch.step(0)
    assert catalogue.receive(0) is None
    watch.step(None)  # nothing has come: it tries by itself
    assert encode(["applied", 9]) == catalogue.receive(10)
    assert ["quotas", "acls"] == done


def test_a_node_ends_whose_catalogue_goes_while_it_takes_in_a_change(watched: Watched) -> None:
    catalogue, watch_with = watched
    watch = watch_with({"topics": [catalogue.close]})
    catalogue.send(encode(["changed", 1, None]))
    with pytest.raises(Fenced, match="the process that has the catalogue is gone"):
        watch.step(None)
