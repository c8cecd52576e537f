"""docker/grafana, docker/prometheus and the compose profile `monitoring`: what they name is there."""

import json
import re
from pathlib import Path
from typing import Any

from broker.config import BrokerConfig, Listener, load
from broker.metrics import names
from broker.metrics.metric import Kind
from tests.loops import loop_over

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docker/grafana/dashboards/broker.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

_NAME = re.compile(r"\b(?:broker|kafka|pulsar)_[a-z0-9_]+")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_GROUPING = re.compile(r"by \(([^)]*)\)")
# Which Prometheus adds to every series.
_ADDED = {"instance", "le"}


def read_yaml(path: Path) -> Any:
    """As much of YAML as these files use: maps and lists by indentation, words, texts in quotes, lists in brackets."""
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    value, rest = _block(lines, 0)
    assert not rest, rest
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], least: int) -> tuple[Any, list[str]]:
    if not lines or _indent(lines[0]) < least:
        return None, lines
    depth = _indent(lines[0])
    value: Any = [] if lines[0].lstrip().startswith("- ") else {}
    while lines and _indent(lines[0]) == depth:
        line, lines = lines[0].strip(), lines[1:]
        if isinstance(value, list):
            item = line[2:]
            if re.match(r"[\w-]+:( |$)", item):
                found, lines = _block([" " * (depth + 2) + item, *lines], depth + 2)
                value.append(found)
            else:
                value.append(_scalar(item))
        else:
            key, _, text = line.partition(":")
            if text.strip():
                value[key] = _scalar(text.strip())
            else:
                value[key], lines = _block(lines, depth + 1)
    return value, lines


def _scalar(text: str) -> Any:
    if text.startswith("["):
        return [_scalar(part.strip()) for part in text[1:-1].split(",")]
    return text.strip('"')


def samples() -> dict[str, tuple[str, ...]]:
    """The names of all samples, with their labels."""
    found = {}
    for metric in names.ALL:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        for suffix in suffixes:
            found[metric.sample_name + suffix] = metric.labels
    return found


@loop_over("expression", EXPRESSIONS)
def test_every_metric_and_label_of_an_expression_exists(expression: str) -> None:
    known = samples()
    used = _NAME.findall(expression)
    assert used
    assert [] == [name for name in used if name not in known]
    labels = {label for name in used for label in known[name]} | _ADDED
    for name, selector in _SELECTOR.findall(expression):
        assert {each.partition("=")[0] for each in selector.split(",")} <= {*known[name], *_ADDED}
    for grouping in _GROUPING.findall(expression):
        assert {label.strip() for label in grouping.split(",")} <= labels


def test_dashboard_variables_query_existing_metrics() -> None:
    known = samples()
    queries = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    for query in queries:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert match is not None
        assert match[2] in {*known[match[1]], *_ADDED}


def test_every_section_of_the_metrics_has_a_panel() -> None:
    shown = set(_NAME.findall(" ".join(EXPRESSIONS)))
    for section in {metric.section for metric in names.ALL}:
        of_section = [metric.sample_name for metric in names.ALL if metric.section == section]
        assert any(name in shown or f"{name}_count" in shown for name in of_section), section


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_the_compose_file_serves_what_prometheus_asks_for() -> None:
    services = read_yaml(ROOT / "compose.yaml")["services"]
    scrapes = read_yaml(ROOT / "docker/prometheus/prometheus.yaml")["scrape_configs"]
    ((target,),) = [each["targets"] for scrape in scrapes for each in scrape["static_configs"]]
    config = image_config()
    (listener,) = [each for each in config.listeners if each.scheme == "http"]
    assert isinstance(listener, Listener)
    assert target == ":".join(map(str, config.advertised_address(listener.name) or ()))
    for name in ("prometheus", "grafana"):
        assert ["monitoring"] == services[name]["profiles"]
        for volume in services[name]["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists()
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def image_config(**variables: str) -> BrokerConfig:
    """The settings of a container of the image, with these environment variables."""
    text = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", "")
    own = dict(re.findall(r'^ENV (BROKER_\w+)="(.*)"$', text, re.MULTILINE))
    command = re.findall(r'"([^"]+)"', text.rpartition("\nCMD [")[2])
    assert ["serve", "--data-dir", "/data", "--set"] == command[:4]
    return load(variables={**own, **variables}, overrides=command[4:])


def test_compose_file_starts_broker_as_image_does() -> None:
    services = read_yaml(ROOT / "compose.yaml")["services"]
    assert not {"command", "entrypoint", "environment"} & services["broker"].keys()
    published = {int(port.rpartition(":")[2]) for port in services["broker"]["ports"]}
    assert published <= {listener.port for listener in image_config().listeners}


def test_the_image_serves_kafka_and_http_and_no_faults() -> None:
    config = image_config()
    assert [("kafka", 9092), ("kafka", 19092), ("http", 8080)] == [
        (each.scheme, each.port) for each in config.listeners
    ]
    assert not config.faults_enabled
    exposed = re.search(r"^EXPOSE (.*)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert exposed is not None
    assert {int(port) for port in exposed[1].split()} == {each.port for each in config.listeners}
    changed = image_config(
        BROKER_LISTENERS="kafka+sasl://0.0.0.0:9092?advertised=localhost:9092,http://0.0.0.0:8080",
        BROKER_USERS="alice:secret",
        BROKER_CREATE_TOPICS="orders:3,users",
        BROKER_FAULTS_ENABLED="true",
    )
    assert (True, ("orders:3", "users"), 2) == (changed.faults_enabled, changed.create_topics, len(changed.listeners))


def test_grafana_finds_the_dashboard_and_its_data() -> None:
    folder = ROOT / "docker/grafana/provisioning"
    (source,) = read_yaml(folder / "datasources/prometheus.yaml")["datasources"]
    assert source["uid"] == DASHBOARD["templating"]["list"][0]["current"]["value"]
    (provider,) = read_yaml(folder / "dashboards/broker.yaml")["providers"]
    volumes = read_yaml(ROOT / "compose.yaml")["services"]["grafana"]["volumes"]
    assert f"./docker/grafana/dashboards:{provider['options']['path']}:ro" in volumes
