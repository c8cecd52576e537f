"""What docs/SCALING.md, compose.yaml (profile durable, its proxy) and the file for Kubernetes set fits together."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.config import BrokerConfig, load
from tests.metrics.test_dashboard import image_config, read_yaml

ROOT = Path(__file__).parents[2]
BROKERS = ("broker-a", "broker-b")
PORTS = {9092, 19092, 8080}


def compose() -> Any:
    return read_yaml(ROOT / "compose.yaml")


def kubernetes(directory: Path) -> dict[str, Any]:
    """The documents by their kinds."""
    found = {}
    for number, text in enumerate((ROOT / "docker/k8s/durable.yaml").read_text().split("\n---\n")):
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
    durable = [name for name, service in services.items() if service.get("profiles") == ["durable"]]
    assert ["postgres", "seaweedfs", *BROKERS, "durable"] == durable
    for name in durable:
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
