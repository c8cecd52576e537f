"""A registry as text: Prometheus's format, or OpenMetrics where the client asks for it. Pure but for the reading.

prometheus-client writes the same, in three times as long, and all of it in one piece, while other threads get the interpreter by
turns only. This one pauses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final

from broker.metrics.registry import Family, Histogram, Labels, Ranges, ReadHistogram, Registry

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Samples that are written between two checks of whether anybody still waits for them: less than 1 ms.
_PIECE = 500


def _nothing() -> None:
    """What is done between two pieces, unless somebody says so."""


def negotiate(accept: str) -> str:
    """The content type for the value of a header Accept: OpenMetrics if it is named there, as Prometheus does, else the text
    format, which everybody reads."""
    for media_range in accept.split(","):
        name, *parameters = [part.strip().lower() for part in media_range.split(";")]
        version = next((each.partition("=")[2] for each in parameters if each.startswith("version=")), "1.0.0")
        unwanted = any(each.replace(" ", "") in ("q=0", "q=0.0") for each in parameters)
        if name == "application/openmetrics-text" and version in ("1.0.0", "0.0.1") and not unwanted:
            return OPENMETRICS
    return PROMETHEUS


def render(registry: Registry, content_type: str = PROMETHEUS, pause: Callable[[], None] = _nothing) -> bytes:
    """All metrics that have a value. ``pause`` is called now and then, and may raise an exception to give up."""
    openmetrics = content_type == OPENMETRICS
    pieces: list[bytes] = []
    lines: list[str] = []
    for family in registry:
        for line in _family(family, openmetrics):
            lines.append(line)
            if len(lines) >= _PIECE:
                pieces.append("".join(lines).encode())
                lines.clear()
                pause()
    if openmetrics:
        lines.append("# EOF\n")
    pieces.append("".join(lines).encode())
    return b"".join(pieces)


def _family(family: Family, openmetrics: bool) -> Iterator[str]:
    metric = family.metric
    name = metric.name if openmetrics else metric.sample_name
    if isinstance(family, Histogram | ReadHistogram):
        samples = _ranges(metric.name, metric.labels, metric.bounds, family.read())
    else:
        samples = _values(metric.sample_name, metric.labels, family.read())
    first = True
    for sample in samples:
        if first:
            first = False
            doc = metric.doc.replace("\\", "\\\\").replace("\n", "\\n")
            if openmetrics:
                doc = doc.replace('"', '\\"')
            yield f"# HELP {name} {doc}\n"
            yield f"# TYPE {name} {metric.kind.value}\n"
        yield sample


def _values(name: str, labels: Labels, values: Mapping[Labels, float]) -> Iterator[str]:
    for key, value in sorted(values.items()):
        yield f"{name}{_labels(labels, key)} {_number(value)}\n"


def _ranges(name: str, labels: Labels, bounds: Iterable[float], values: Mapping[Labels, Ranges]) -> Iterator[str]:
    ends = [*(_number(bound) for bound in bounds), "+Inf"]
    for key, (counts, total) in sorted(values.items()):
        own = _labels(labels, key)
        before = f"{own[:-1]}," if own else "{"
        running = 0.0
        for end, count in zip(ends, counts, strict=True):
            running += count
            yield f'{name}_bucket{before}le="{end}"}} {_number(running)}\n'
        yield f"{name}_count{own} {_number(running)}\n"
        yield f"{name}_sum{own} {_number(total)}\n"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join([f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)]) + "}"


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    if value.isascii() and '"' not in value and "\\" not in value and "\n" not in value:
        return value
    # Text that is not Unicode cannot be sent.
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if -inf < value < inf:
        return repr(float(value))
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
