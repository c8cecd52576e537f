"""What docs/SCALING.md, compose.yaml (profiles durable and cluster, the proxy) and the files for Kubernetes set fits together."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.config import BrokerConfig, load
from broker.config.listener import NODES_LISTENER
from broker.server.machine_supervisor import MACHINE, _check, seat_of
from broker.server.node_processes import PLACE
from tests.metrics.test_dashboard import image_config, read_yaml

ROOT = Path(__file__).parents[2]
BROKERS = ("broker-a", "broker-b")
MACHINES = ("cluster-1", "cluster-2", "cluster-3")
PORTS = {9092, 19092, 8080}


def compose() -> Any:
    return read_yaml(ROOT / "compose.yaml")


def kubernetes(directory: Path, name: str = "durable") -> dict[str, Any]:
    """The documents by their kinds."""
    found = {}
    for number, text in enumerate((ROOT / f"docker/k8s/{name}.yaml").read_text().split("\n---\n")):
        part = directory / f"{number}.yaml"
        part.write_text(text)
        document = read_yaml(part)
        found[document["kind"]] = document
    return found


def advertised(config: BrokerConfig) -> dict[str, tuple[str, int] | None]:
    return {listener.name: config.advertised_address(listener.name) for listener in config.listeners}


def test_settings_of_the_guide_are_taken() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "docs/SCALING.md").read_text(), re.DOTALL | re.MULTILINE)
    tiered, durable = (load(block) for block in blocks)
    assert ("s3://bucket/prefix", None, 10**9) == (
        tiered.objects,
        tiered.catalogue,
        tiered.log_local_retention_bytes,
    )
    assert ("s3://bucket/prefix", True) == (durable.objects, durable.standby)
    assert durable.catalogue is not None


def test_both_brokers_of_compose_are_alike_and_stand_by() -> None:
    services = compose()["services"]
    first, second = (services[name] for name in BROKERS)
    assert first == second
    config = image_config(**first["environment"])
    assert (True, "s3://broker/compose") == (config.standby, config.objects)
    user, password = (services["postgres"]["environment"][f"POSTGRES_{name}"] for name in ("USER", "PASSWORD"))
    assert f"postgresql://{user}:{password}@postgres:5432/{user}" == config.catalogue


def test_what_brokers_of_compose_advertise_is_the_proxy() -> None:
    services = compose()["services"]
    config = image_config(**services["broker-a"]["environment"])
    addresses = advertised(config)
    assert {"kafka": ("localhost", 9092), "containers": ("durable", 19092), "http": ("durable", 8080)} == addresses
    assert PORTS == {listener.port for listener in config.listeners}
    published = {int(port.rpartition(":")[2]) for port in services["durable"]["ports"]}
    assert {9092, 8080} == published


def test_proxy_leads_each_port_to_both_brokers() -> None:
    text = (ROOT / "docker/haproxy.cfg").read_text()
    binds = [int(port) for port in re.findall(r"^ +bind :(\d+)$", text, re.MULTILINE)]
    assert PORTS == set(binds)
    assert [(name, str(port)) for port in binds for name in BROKERS] == re.findall(
        r"^ +server \w (\S+):(\d+)$", text, re.MULTILINE
    )


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
def test_proxy_takes_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text((ROOT / "docker/haproxy.cfg").read_text())
    subprocess.run(["haproxy", "-c", "-f", config], check=True, capture_output=True, timeout=60)


def test_services_of_the_profile_are_started_together_only() -> None:
    services = compose()["services"]
    profiles = {
        profile: [name for name, service in services.items() if profile in service.get("profiles", ())]
        for profile in ("durable", "cluster")
    }
    assert ["postgres", "seaweedfs", *BROKERS, "durable"] == profiles["durable"]
    assert ["postgres", "seaweedfs", *MACHINES] == profiles["cluster"]
    for name in {*profiles["durable"], *profiles["cluster"]}:
        for volume in services[name].get("volumes", ()):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in compose()["volumes"]


def test_postgres_keeps_its_recovery_short_and_the_store_knows_the_brokers_key() -> None:
    services = compose()["services"]
    assert "max_wal_size=256MB" in services["postgres"]["command"]
    environment = services["broker-a"]["environment"]
    (identity,) = json.loads((ROOT / "docker/seaweedfs.json").read_text())["identities"]
    assert [
        {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}
    ] == identity["credentials"]


def test_kubernetes_sets_what_the_broker_takes(tmp_path: Path) -> None:
    documents = kubernetes(tmp_path)
    assert {"Secret", "Service", "Deployment"} == documents.keys()
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (source,) = container["envFrom"]
    assert documents["Secret"]["metadata"]["name"] == source["secretRef"]["name"]
    variables = {**documents["Secret"]["stringData"], **{each["name"]: each["value"] for each in container["env"]}}
    config = load(variables=variables, overrides=["allow_anonymous_listeners=true"])
    assert (True, "s3://BUCKET/PREFIX") == (config.standby, config.objects)
    assert "false" == pod["enableServiceLinks"]
    assert (mount := container["volumeMounts"][0])["name"] == pod["volumes"][0]["name"]
    assert "/data" == mount["mountPath"]


def test_kubernetes_service_leads_to_who_listens(tmp_path: Path) -> None:
    documents = kubernetes(tmp_path)
    service, deployment = documents["Service"], documents["Deployment"]
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    assert "kafka" == container["readinessProbe"]["tcpSocket"]["port"]
    ports = {each["name"]: int(each["port"]) for each in service["spec"]["ports"]}
    assert ports == {each["name"]: int(each["containerPort"]) for each in container["ports"]}
    (listeners,) = (each["value"] for each in container["env"] if each["name"] == "BROKER_LISTENERS")
    config = load(variables={"BROKER_LISTENERS": listeners}, overrides=["allow_anonymous_listeners=true"])
    name = service["metadata"]["name"]
    assert {"kafka": (name, ports["kafka"]), "http": (name, ports["http"])} == advertised(config)
    # A rolling update would wait for ever: one of two is never ready.
    assert "Recreate" == deployment["spec"]["strategy"]["type"]


# -- a cluster of several machines ----------------------------------------------------------------------------------------


def nodes_of(config: BrokerConfig) -> list[BrokerConfig]:
    """The settings of each node of a machine."""
    return [
        seat_of({PLACE: f"{place}/{config.nodes}", MACHINE: "0 machine"}).adapt(config) for place in range(config.nodes)
    ]


def test_machines_of_compose_differ_in_their_addresses_only() -> None:
    services = compose()["services"]
    found = []
    for name in MACHINES:
        service = {**services[name], "environment": dict(services[name]["environment"])}
        del service["environment"]["BROKER_LISTENERS"], service["ports"]
        found.append(service)
    assert found == [found[0]] * 3
    durable = image_config(**services["broker-a"]["environment"])
    config = image_config(**services["cluster-1"]["environment"])
    _check(config)
    assert (6, False, durable.catalogue) == (config.nodes, config.standby, config.catalogue)
    assert (durable.catalogue_schema, durable.objects) != (config.catalogue_schema, config.objects)
    assert config.catalogue_schema != durable.catalogue_schema
    assert config.objects != durable.objects


def test_every_node_of_compose_is_found_from_inside_and_outside() -> None:
    services = compose()["services"]
    outside: set[tuple[str, int]] = set()
    for name in MACHINES:
        config = image_config(**services[name]["environment"])
        published = set()
        for port in services[name]["ports"]:
            address, host_ports, ports = port.split(":")
            assert ("127.0.0.1", host_ports) == (address, ports)
            first, last = map(int, ports.split("-"))
            published |= set(range(first, last + 1))
        for place, node in enumerate(nodes_of(config)):
            assert {"containers": (name, 19092 + place)}.items() <= advertised(node).items()
            local = [node.advertised_address(each) for each in ("kafka", "http")]
            # What is advertised to clients outside is where they are led to this node.
            assert local == [("localhost", each.port) for each in node.listeners if each.name in ("kafka", "http")]
            assert {port for address in local if address is not None for port in [address[1]]} <= published
            outside |= {address for address in local if address is not None}
        seat = seat_of({PLACE: "0/6", MACHINE: "0 machine"})
        seat.adapt(config)
        assert (NODES_LISTENER, "0.0.0.0") == (seat.listener.name, seat.listener.host)
        assert name == seat.reached_by_nodes
    assert 2 * 6 * len(MACHINES) == len(outside)


def test_pods_of_the_cluster_are_found_by_their_names(tmp_path: Path) -> None:
    documents = kubernetes(tmp_path, "cluster")
    assert {"Secret", "Service", "StatefulSet"} == documents.keys()
    service, pods = documents["Service"], documents["StatefulSet"]
    name = service["metadata"]["name"]
    assert ("None", "true") == (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"])
    assert name == pods["spec"]["serviceName"]
    template = pods["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    assert documents["Secret"]["metadata"]["name"] == container["envFrom"][0]["secretRef"]["name"]
    assert container["volumeMounts"][0]["name"] == template["spec"]["volumes"][0]["name"]
    assert "false" == template["spec"]["enableServiceLinks"]
    names = [each["name"] for each in container["env"]]
    assert names.index("POD_NAME") < names.index("BROKER_LISTENERS"), "it is not replaced before it is known"
    values = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    text = (ROOT / "docker/k8s/cluster.yaml").read_text()
    bootstrap = re.search(r"bootstrap.servers=(\S+)", text)
    assert bootstrap is not None
    first = []
    for number in range(int(pods["spec"]["replicas"])):
        pod = f"{pods['metadata']['name']}-{number}"
        variables = {key: value.replace("$(POD_NAME)", pod) for key, value in values.items()}
        secret = documents["Secret"]["stringData"]
        config = load(variables={**secret, **variables}, overrides=["allow_anonymous_listeners=true"])
        _check(config)
        nodes = nodes_of(config)
        assert [(f"{pod}.{name}", 9092 + place) for place in range(6)] == [
            node.advertised_address("kafka") for node in nodes
        ]
        first.append(f"{pod}.{name}:9092")
    assert ",".join(first) == bootstrap[1]
