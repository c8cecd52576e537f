"""Writes the parts of the documents that are made from code: `make docs`. With --check: only says whether they are up to date.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; all around it is written by hand.
tests/test_docs.py runs the check.
"""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import click

from broker.cli import main as cli
from broker.cli.help import EXAMPLES
from broker.config import BrokerConfig, Setting, setting_infos
from broker.config.topic_settings import SETTINGS
from broker.delivery import in_flight
from broker.kafka import handlers
from broker.kafka.api import Api
from broker.kafka.transactions import coordinator, transaction
from broker.metrics import names
from broker.network import mute
from broker.pulsar import handlers as pulsar_handlers
from broker.pulsar import rights
from broker.pulsar.command import Command
from broker.pulsar.dispatch import single_active

DOCS = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
_NEVER = 2**63 - 1
_INT_MAX = 2**31 - 1


def broker_settings() -> str:
    """A table for each group of settings, in the order in which an operator meets them."""
    infos = setting_infos(BrokerConfig)
    parts = []
    for section in dict.fromkeys(info.section for info in infos):
        rows = [
            (
                f"`{info.name}`",
                f"`{info.kafka}`" if info.kafka else "-",
                info.unit,
                info.documented or _default(info.default),
                _choices(info.doc, info.choices),
                info.reason,
            )
            for info in infos
            if info.section == section
        ]
        columns = ("setting", "Kafka's name", "unit", "default", "what it does", "why this default")
        parts.append(f"### {section}\n\n{_table(columns, rows)}")
    return "\n".join(parts)


def typed_settings() -> str:
    """broker/client/settings.py: what `Broker(...)` takes, for editors and type checkers."""
    lines = [
        '"""What ``Broker(...)`` takes, for editors and type checkers. Written by docs/generate.py (`make docs`).',
        "",
        "Tests: tests/client/test_embedded.py.",
        '"""',
        "",
        "from collections.abc import Mapping, Sequence",
        "from typing import Literal, TypedDict",
        "",
        "",
        "class Settings(TypedDict, total=False):",
    ]
    for info in setting_infos(BrokerConfig):
        if info.name != "data_dir":  # an argument of its own
            lines.append(f"    {info.name}: {_type_name(info)}")
    return "\n".join(lines) + "\n"


def _type_name(info: Setting) -> str:
    kind = info.plain_type
    if info.choices:
        name = f"Literal[{', '.join(map(repr, info.choices))}]".replace("'", '"')
    elif get_origin(kind) is tuple:
        name = "Sequence[str]"
    elif get_origin(kind) is Mapping:
        name = f"Mapping[str, {get_args(kind)[1].__name__}]"
    else:
        # What is no plain value, such as a listener, is given as text.
        name = kind.__name__ if kind in (bool, int, float) else "str"
    return f"{name} | None" if info.optional else name


def topic_settings() -> str:
    rows = [
        (
            f"`{setting.name}`",
            setting.kind,
            _default(setting.default),
            f"`{setting.kafka.replace('.', '_')}`" if setting.kafka else "-",
            _choices(setting.doc, setting.choices),
        )
        for setting in SETTINGS
    ]
    return _table(("setting", "type", "Kafka's default", "taken from the broker's", "what it does"), rows)


def _handled_on(api: Api) -> str:
    if api.prepare:
        return "processor, when short and it cannot block"
    if api.inline:
        return "processor, when short"
    return "handler pool" if api.lane is None else f"handler pool, {api.lane} lane"


def _advertised(api: Api) -> str:
    if api.feature is not None:
        return f"as the feature `{api.feature[0]}`"
    versions = " - ".join(map(str, api.advertised))
    return versions if api.condition is None else f"{versions}, {api.condition}"


def kafka_apis() -> str:
    rows = [
        (
            key,
            _words(api.key.name),
            f"{api.min_version} - {api.max_version}",
            _advertised(api),
            _handled_on(api),
        )
        for key, api in handlers.load().items()
    ]
    return _table(("key", "API", "versions served", "versions advertised", "handled on"), rows)


def _pulsar_handled_on(command: Command) -> str:
    if command.inline is True:
        return "processor"
    pool = "handler pool" if command.lane is None else f"handler pool, {command.lane} lane"
    return pool if command.inline is False else f"processor, if it cannot block; else {pool}"


def pulsar_commands() -> str:
    rows = [
        (int(command.type), command.name, _pulsar_handled_on(command), f"`{module}`")
        for module, command in pulsar_handlers.by_module()
    ]
    return _table(("type", "command", "handled on", "handler"), sorted(rows))


def delivery_states() -> str:
    return _table_of(in_flight.__doc__)


def reading_states() -> str:
    return _table_of(single_active.__doc__)


def pulsar_rights() -> str:
    return _table_of(rights.__doc__)


def mute_states() -> str:
    """What holds a connection back, and what Kafka calls it: the two tables that the module draws."""
    return "\n".join(_table_of(part) for part in (mute.__doc__ or "").split("\n\n") if part.startswith("| "))


def transaction_phases() -> str:
    """What is answered to whom at an end, and the phases with the notes of their table."""
    table = transaction.TABLE
    rows = [
        (phase.value, event.name, after.value, table.notes[phase, event]) for (phase, event), after in table.items()
    ]
    return "\n".join((_table_of(transaction.__doc__), _table(("phase", "event", "next phase", "and"), rows)))


def joint_ends() -> str:
    return _table_of(coordinator.__doc__)


# The state machines that are tables, from the reactor to the clients. Connections have a section of their own.
MACHINES = (
    "broker.kafka.sasl_session",
    "broker.kafka.groups.classic_states",
    "broker.kafka.groups.share.target_assignment",
    "broker.kafka.transactions.transaction",
    "broker.shuffle.partition.life",
    "broker.shuffle.partition.reading_state",
    "broker.shuffle.spill.spill",
    "broker.client.shuffle.writing.resend_window",
    "broker.client.shuffle.writing.broker_link",
    "broker.client.shuffle.reading.input_channel",
    "broker.client.kafka.transaction",
    "broker.cluster.lease",
)


def state_machines() -> str:
    """What each is about, and its table as a drawing."""
    return "\n".join(_drawing(importlib.import_module(name)) for name in MACHINES)


def _drawing(module: ModuleType) -> str:
    path = module.__name__.replace(".", "/") + ".py"
    summary = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    events: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in module.TABLE.items():
        events.setdefault((state.name, after.name), []).append(event.name)
    lines = [f"    {state} --> {after}: {' or '.join(names)}" for (state, after), names in events.items()]
    return "\n".join([f"[`{path}`](../{path}): {summary}", "", "```mermaid", "stateDiagram-v2", *lines, "```", ""])


def _table_of(doc: str | None) -> str:
    """The one that a module draws."""
    lines = [line for line in (doc or "").splitlines() if line.startswith("| ")]
    columns, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return _table(columns, rows)


def bounds() -> str:
    """A table for each section of docs/bounds.toml, with the figures of the code."""
    sections = tomllib.loads((DOCS / "bounds.toml").read_text("utf-8"))
    return "\n".join(
        f"## {section}\n\n{_table(('what', 'bound', 'past it'), [map(with_figures, row) for row in rows])}"
        for section, rows in sections.items()
    )


_FIGURE = re.compile(r"\{(?P<folder>[\w/]*/)?(?P<name>\w+)(?::(?P<unit>bytes|ms))?\}")


def with_figures(text: str) -> str:
    """``text`` with figures in place of ``{name}``: a setting with its default, or the value of a constant.

    Raises KeyError if there is neither, and if constants of several values have the name.
    """
    return _FIGURE.sub(lambda figure: _figure(figure["folder"] or "", figure["name"], figure["unit"]), text)


def _figure(folder: str, name: str, unit: str | None) -> str:
    settings = {info.name: info for info in setting_infos(BrokerConfig)}
    if name in settings:
        default = settings[name].default
        known = isinstance(default, int) and 0 < default < _INT_MAX
        return f"`{name}` ({_amount(default, settings[name].unit)})" if known else f"`{name}`"
    values = {value for path, constant, value in _constants() if constant == name and path.startswith(folder)}
    if len(values) != 1:
        raise KeyError(
            f"{folder}{name} has the values {sorted(values)} and needs a single one: name the folder in docs/bounds.toml"
        )
    (value,) = values
    return _amount(value * 1000, "ms") if unit == "ms" else _amount(value, unit or "")


def _amount(value: float, unit: str) -> str:
    for size, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if unit == "bytes" and value >= size and value * 10 % size == 0:
            return f"{value / size:g} {name}"
    return f"{value:,.10g} {unit}".strip()


@cache
def _constants() -> list[tuple[str, str, float]]:
    """File, name and value of each constant of a module that is a number."""
    return [
        (path.relative_to(DOCS.parent).as_posix(), name, value)
        for package in ("broker", "protocol")
        for path in sorted((DOCS.parent / package).rglob("*.py"))
        for name, value in _constants_of(path.read_text("utf-8"))
    ]


def _constants_of(source: str) -> Iterator[tuple[str, float]]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        parts = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        if isinstance(targets[0], ast.Name) and all(isinstance(part, parts) for part in ast.walk(value)):
            number = eval(compile(ast.Expression(value), "constant", "eval"))  # numbers and operators only
            if isinstance(number, (int, float)):
                yield targets[0].id, number


_LEVELS = ("debug", "info", "warning", "error")
_LOGGERS = ("log", "logger", "events")


def events() -> str:
    """Every event that the broker writes: found in the source, as calls of its loggers with a literal name."""
    rows: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for path in sorted((DOCS.parent / "broker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            owner, name = node.func.value, node.args[0]
            if (
                isinstance(owner, ast.Name)
                and owner.id in _LOGGERS
                and node.func.attr in _LEVELS
                and isinstance(name, ast.Constant)
                and re.fullmatch(r"[a-z_]+", name.value)
            ):
                fields, modules = rows.setdefault((name.value, node.func.attr), (set(), set()))
                fields.update(keyword.arg for keyword in node.keywords if keyword.arg not in (None, "exc_info"))
                modules.add(path.relative_to(DOCS.parent).as_posix())
    table = [
        (f"`{event}`", level, ", ".join(sorted(fields)), ", ".join(f"`{module}`" for module in sorted(modules)))
        for (event, level), (fields, modules) in sorted(rows.items())
    ]
    return _table(("event", "level", "fields", "written by"), table)


def metrics() -> str:
    """A table for each section, as the samples are called in queries."""
    parts = []
    for section in dict.fromkeys(metric.section for metric in names.ALL):
        rows = [
            (
                f"`{metric.sample_name}`",
                metric.kind.value,
                ", ".join(f"`{label}`" for label in metric.labels) or "-",
                metric.doc,
            )
            for metric in names.ALL
            if metric.section == section
        ]
        parts.append(f"### {section}\n\n{_table(('metric', 'kind', 'labels', 'what it is'), rows)}")
    return "\n".join(parts)


def required_rights() -> str:
    """From the table that the tests send to the broker."""
    sys.path.insert(0, str(DOCS.parent))
    rows = importlib.import_module("tests.kafka.required_rights").ROWS
    lines = []
    for row in rows:
        name = "".join(word.capitalize() for word in row.key.name.split("_"))
        asked = [" or ".join(_alternatives(right)) for right in (*row.rights, *row.inside)]
        if len(asked) > 1:
            asked = [f"({one})" if " or " in one else one for one in asked]
        rights = " and ".join(asked) or "-"
        lines.append((f"`{name}`" + (f" ({row.label})" if row.label else ""), rights))
    return _table(("API", "operation and resource"), list(dict.fromkeys(lines)))


def _alternatives(right: Any) -> Iterable[str]:
    while right is not None:
        hidden = " (else left out)" if right.error is None and right.or_else is None else ""
        yield f"{right.operation.name} {right.resource_type.name}{hidden}"
        right = right.or_else


def commands() -> str:
    """A section for each command: what it does, how it is called, its options, and an example."""
    sections = []
    for name in cli.COMMANDS:
        command = importlib.import_module(f"broker.cli.{name}").command
        sections += (
            [f"## {name}", "", *_command(command, name)]
            if not isinstance(command, click.Group)
            else [
                f"## {name}",
                "",
                *_sentences(command),
                *(
                    line
                    for inner in command.commands
                    for line in [f"### {name} {inner}", "", *_command(command.commands[inner], f"{name} {inner}")]
                ),
            ]
        )
    return "\n".join(sections)


def _command(command: click.Command, path: str) -> list[str]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    words = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    rows = [
        (", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)), _taken(one), _option_help(one))
        for one in options
        if not _COMMON.keys() & set(one.opts)
    ]
    common = [text for name, text in _COMMON.items() if any(name in one.opts for one in options)]
    return [
        *_sentences(command),
        "```",
        " ".join(["broker", path, *["[OPTIONS]"] * bool(options), *words]),
        "```",
        "",
        *([_table(("option", "takes", "what it does"), rows)] if rows else []),
        *([f"Also: {', '.join(common)}.", ""] if common else []),
        "```",
        EXAMPLES[path],
        "```",
        "",
    ]


# Options that most commands have: docs/COMMANDS.md describes them once.
_COMMON = {
    "--output": "`--output`",
    "--admin-url": "`--admin-url`",
    "--bootstrap-server": "`-b`",
    "--client-config": "`--client-config`",
    "-X": "`-X`",
}


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _sentences(command: click.Command) -> list[str]:
    """The help of a command as paragraphs; what must not be wrapped stays as it is."""
    lines: list[str] = []
    # Only compilers from Python 3.13 on take the indentation out of docstrings.
    for part in inspect.cleandoc(command.help or "").split("\n\n"):
        if part.startswith("\b"):
            lines += ["```", *part.removeprefix("\b").strip("\n").split("\n"), "```", ""]
        else:
            lines += [" ".join(part.split()).replace("<", "\\<"), ""]
    return lines


def _taken(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    return f"`{option.metavar or option.type.name.upper().removesuffix(' RANGE')}`"


def _option_help(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    if option.show_default and not option.is_flag:
        text = f"{text}  [default: {option.default}]".strip()
    return text.replace("<", "\\<")


PARTS: dict[str, Callable[[], str]] = {
    "required-rights": required_rights,
    "broker-settings": broker_settings,
    "topic-settings": topic_settings,
    "kafka-apis": kafka_apis,
    "pulsar-commands": pulsar_commands,
    "pulsar-rights": pulsar_rights,
    "delivery-states": delivery_states,
    "reading-states": reading_states,
    "mute-states": mute_states,
    "transaction-phases": transaction_phases,
    "joint-ends": joint_ends,
    "state-machines": state_machines,
    "bounds": bounds,
    "events": events,
    "commands": commands,
    "metrics": metrics,
}


def render(document: str) -> str:
    """``document`` with all its generated parts as they are now."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}\n{part[4]}", document)


# Whole modules that are made from others.
MODULES: dict[Path, Callable[[], str]] = {DOCS.parent / "broker" / "client" / "settings.py": typed_settings}


def outdated() -> list[Path]:
    documents = [
        path for path in sorted(DOCS.glob("*.md")) if render(path.read_text("utf-8")) != path.read_text("utf-8")
    ]
    modules = [path for path, made in MODULES.items() if not path.exists() or path.read_text("utf-8") != made()]
    return documents + modules


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(columns)]
    lines.append(["---"] * len(lines[0]))
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _choices(doc: str, choices: Iterable[str]) -> str:
    listed = ", ".join(f"`{choice}`" for choice in choices)
    return f"{doc} One of {listed}." if listed else doc


def _default(value: Any) -> str:
    if hasattr(value, "factory"):
        value = value.factory()
    if value is None or value in ({}, ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, (int, float)):
        if value in (_NEVER, _INT_MAX) or value > 1e300:
            return f"{value:g} (no bound)" if isinstance(value, float) else f"{value} (no bound)"
        return str(value)
    return f"`{value}`"


def _words(name: str) -> str:
    """FETCH_SNAPSHOT -> FetchSnapshot, as Kafka writes it."""
    return "".join(word.capitalize() for word in name.split("_"))


def main() -> int:
    stale = outdated()
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.name} is not up to date: run `make docs`")
        return bool(stale)
    for path in stale:
        path.write_text(MODULES[path]() if path in MODULES else render(path.read_text("utf-8")), "utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
