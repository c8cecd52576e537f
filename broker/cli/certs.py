"""`broker certs`: makes a certificate authority for development, a certificate for the broker, and a certificate for
each client.

A file is complete or missing: each is written under another name and renamed.
"""

import os
import platform
import re
import shlex
from typing import TYPE_CHECKING

import click

from broker.cli.broker_options import read_password
from broker.cli.output import output_option, print_object, say
from broker.errors import BrokerError, ConfigError
from broker.runtime.clock import SystemClock

if TYPE_CHECKING:
    from broker.security.certificates import Identity

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# The longest validity that Java and browsers accept from an added authority; and a forgotten authority should expire
# one day.
_DAYS = 825
_AUTHORITY_DAYS = 3650
_PRIVATE, _PUBLIC = 0o600, 0o644
_CLIENT = re.compile(r"[^\s./\\][^/\\\0-\x1f]*")


@click.command()
@click.argument("directory", metavar="[DIR]", default="certs", type=click.Path(file_okay=False))
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="Another name or address of the broker.")
@click.option("--client", "clients", metavar="NAME", multiple=True, help="Make a certificate for this client, too.")
@click.option(
    "--days",
    type=click.IntRange(1, _AUTHORITY_DAYS),
    default=_DAYS,
    show_default=True,
    help="Days for which the certificates are valid.",
)
@click.option("--pkcs12", is_flag=True, help="Write PKCS#12 files as well, with a password.")
@click.option(
    "--password-file", metavar="FILE", help="The password for --pkcs12 (or BROKER_CERTS_PASSWORD; else asked for)."
)
@click.option("--force", is_flag=True, help="Replace what is there, the authority included.")
@output_option
def command(
    directory: str,
    hosts: tuple[str, ...],
    clients: tuple[str, ...],
    days: int,
    pkcs12: bool,
    password_file: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Make a certificate authority and certificates for development in DIR (certs).

    ca.crt is the authority that clients trust, and ca.key signs. server.pem has the broker's key and certificate,
    client.properties the settings of a client; with --client alice there are alice.pem and alice.properties as well. An
    authority that is in DIR already signs further certificates. Keep *.key, *.pem and *.p12 secret.
    """
    # Imported here: cryptography takes 0.1 s.
    from broker.security import certificates

    for name in clients:
        _check_client(name)
    path = _Paths(directory)
    now_s = SystemClock.time_ms() / 1000
    password = None
    if pkcs12:
        password = read_password("the PKCS#12 files", password_file, "BROKER_CERTS_PASSWORD", again=True)
    files: dict[str, tuple[bytes, int]] = {}

    authority = None if force else _existing_authority(path)
    old = authority is not None
    if authority is None:
        authority = certificates.make_authority("reactor-broker development", now_s, _AUTHORITY_DAYS)
        files[path.authority_key] = authority.key_pem(), _PRIVATE
        files[path.authority] = authority.certificate_pem, _PUBLIC

    def add(name: str, identity: "Identity") -> None:
        files[path.of(name, "pem")] = identity.key_pem() + identity.certificate_pem, _PRIVATE
        if password is not None:
            files[path.of(name, "p12")] = identity.pkcs12(name, password), _PRIVATE

    names = tuple(dict.fromkeys((*_LOCAL_NAMES, *_host_name(), *hosts)))
    # A further run for a client leaves the broker's certificate as it is.
    if hosts or not (old and os.path.exists(path.server)) or not clients:
        add("server", certificates.sign_server(authority, names, now_s, days))
        files[path.of("client", "properties")] = _properties(path, None), _PUBLIC
    for name in dict.fromkeys(clients):
        add(name, certificates.sign_client(authority, name, now_s, days))
        files[path.of(name, "properties")] = _properties(path, name), _PUBLIC

    existing = [file for file in files if os.path.lexists(file)]
    if existing and not force:
        raise ConfigError(f"{existing[0]} exists: choose another directory, or replace it with --force.")
    _write_all(directory, files)
    if as_json:
        for file in files:
            print_object({"file": file, "names": names if file == path.server else []})
        return
    for file in files:
        say(f"made {file}" + (f" for {', '.join(names)}" if file == path.server else ""))
    _print_next(path, dict.fromkeys(clients))


class _Paths:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.authority = self.of("ca", "crt")
        self.authority_key = self.of("ca", "key")
        self.server = self.of("server", "pem")

    def of(self, name: str, suffix: str) -> str:
        return os.path.join(self._directory, f"{name}.{suffix}")


def _check_client(name: str) -> None:
    if not _CLIENT.fullmatch(name) or name in ("ca", "server", "client"):
        raise click.UsageError(
            f"Give the client another name than {name!r}: it names files, and ca, server and client are taken."
        )


def _host_name() -> tuple[str, ...]:
    name = platform.node()
    return (name,) if name.isascii() and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", name) else ()


def _existing_authority(path: _Paths) -> "Identity | None":
    from broker.security import certificates

    texts = []
    for name in (path.authority, path.authority_key):
        try:
            with open(name, "rb") as file:
                texts.append(file.read())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise BrokerError(f"{name} cannot be read: {error.strerror}.") from error
    if not texts:
        return None
    if len(texts) == 1:
        raise ConfigError(
            f"There is only one of {path.authority} and {path.authority_key}: restore the other, or replace all with --force."
        )
    try:
        return certificates.load_authority(*texts)
    except ConfigError as error:
        raise ConfigError(f"{path.authority} cannot sign: {error}") from error


def _properties(path: _Paths, client: str | None) -> bytes:
    """The settings of a Kafka client, by the names of Java's clients, which this broker's commands read as well."""
    lines = [
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={_escaped(os.path.abspath(path.authority))}",
    ]
    if client is not None:
        lines += [
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={_escaped(os.path.abspath(path.of(client, 'pem')))}",
        ]
    return "".join(f"{line}\n" for line in lines).encode()


def _escaped(text: str) -> str:
    """A value of a properties file, which Java reads as Latin-1."""
    units = text.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def _write_all(directory: str, files: dict[str, tuple[bytes, int]]) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        for path, (data, mode) in files.items():
            unfinished = f"{path}.{os.getpid()}"
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                os.replace(unfinished, path)
            except BaseException:
                os.remove(unfinished)
                raise
    except OSError as error:
        raise BrokerError(f"{error.filename or directory} cannot be written: {error.strerror}.") from error


def _print_next(path: _Paths, clients: dict[str, None]) -> None:
    """Print the next two commands to run."""
    serve = f"broker serve --listener kafka+ssl://127.0.0.1:9092 --set ssl_keystore_location={shlex.quote(path.server)}"
    if clients:
        serve += f" --set ssl_client_auth=required --set ssl_truststore_location={shlex.quote(path.authority)}"
    properties = path.of(next(iter(clients), "client"), "properties")
    click.echo(f"\n{serve}\nbroker topics list -b localhost:9092 --client-config {shlex.quote(properties)}")
