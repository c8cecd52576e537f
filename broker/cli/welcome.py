"""What `serve` says on a terminal when clients can connect: the addresses, what to type next, and how to stop. Pure."""

from collections.abc import Callable, Iterable

import attrs

_SPEAKS = {"kafka": "Kafka", "shuffle": "shuffle", "pulsar": "Pulsar", "http": "HTTP"}


@attrs.frozen
class Address:
    """``encrypted`` and ``login``: what a client must bring."""

    scheme: str
    address: str
    encrypted: bool = False
    login: bool = False


def screen(version: str, addresses: Iterable[Address], data_dir: str, command: str) -> str:
    """``command``: how to call this program from where the user is."""
    found = sorted(addresses, key=lambda one: list(_SPEAKS).index(one.scheme) if one.scheme in _SPEAKS else 9)
    rows = [(_SPEAKS.get(one.scheme, one.scheme), _shown(one)) for one in found]
    rows.append(("topics", data_dir))
    kafka = next((one for one in found if one.scheme == "kafka"), None)
    if kafka is not None and not kafka.encrypted and not kafka.login:
        where = "" if kafka.address.endswith(":9092") and _is_loopback(kafka.address) else f" -b {kafka.address}"
        rows.append(("next", "in another terminal:"))
        rows.append(("", f"  echo hello | {command} produce greetings{where}"))
        rows.append(("", f"  {command} consume greetings{where}"))
    rows.append(("stop", "Ctrl-C"))
    width = max(len(title) for title, _ in rows)
    lines = [f"reactor-broker {version} is running", *(f"  {title:{width}}  {text}".rstrip() for title, text in rows)]
    return "\n" + "\n".join(lines) + "\n"


def _shown(one: Address) -> str:
    if one.scheme == "http":
        return f"{'https' if one.encrypted else 'http'}://{one.address}/"
    needs = [text for text, needed in (("TLS", one.encrypted), ("a login", one.login)) if needed]
    return f"{one.address} (with {' and '.join(needs)})" if needs else one.address


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]"))


def command_name(program: str, path: str, is_program: Callable[[str], bool]) -> str:
    """ "broker", if typing that runs this program; otherwise its own path. ``path``: the variable PATH."""
    if program.endswith("__main__.py"):
        return "python -m broker"
    for directory in path.split(":"):
        candidate = f"{directory.rstrip('/')}/broker"
        if directory and is_program(candidate):
            return "broker" if candidate == program else program
    return program
