"""The options of every command for the broker's address and the connection: -b, --client-config and -X; passwords; and options
that several commands have.

The settings have Kafka's names. ``-X`` takes precedence over the file, and both over the environment. `ps` shows the
arguments of a command, so secrets are never arguments: they come from the file, a password also from
BROKER_SASL_PASSWORD or from the user, who types it without an echo.

Tests: tests/cli/test_certs.py.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.addresses import parse_address
from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.client.kafka.config import ClientConfig
    from broker.client.security_settings import SecuritySettings

import sys

from broker.runtime.files import read_text

# A larger password file is a mistake, such as a log or a device.
_FILE_MAX = 64 * 1024


def read_password(what: str, file: str | None, variable: str, *, again: bool = False, hint: str | None = None) -> str:
    """The password for ``what``: the first line of ``file`` (``-`` is standard input), the environment variable, or the
    user's answer, typed twice if ``again``. Raises ConfigError without a password; ``hint``: another way to give it."""
    if file is not None:
        password = read_secret_file(file).partition("\n")[0].removesuffix("\r")
        if not password:
            raise ConfigError(f"Write the password for {what} into the first line of {file}: it is empty.")
        return password
    if typed := os.environ.get(variable):
        return typed
    if not sys.stdin.isatty():
        raise ConfigError(f"Give the password for {what} {hint or f'with --password-file FILE, or in {variable}'}.")
    return str(click.prompt(f"Password for {what}", hide_input=True, confirmation_prompt=again, err=True))


def read_secret_file(path: str) -> str:
    """The text of ``path``. Raises ConfigError, which does not contain the text."""
    try:
        return read_text("/dev/stdin" if path == "-" else path, _FILE_MAX)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{error}.") from None


_DEFAULT_ADDRESS = "localhost:9092"
_PASSWORD = "BROKER_SASL_PASSWORD"
_SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.")
# The settings that -X accepts besides security. All others are options of the commands that use them.
_OTHERS = (
    "bootstrap.servers",
    "metadata.broker.list",
    "client.id",
    "socket.connection.setup.timeout.ms",
    "request.timeout.ms",
    "default.api.timeout.ms",
)
# The settings that -X refuses, because `ps` would show them.
_SECRETS = (
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.token",
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
)
# For suggestions.
_NAMES = (
    *_OTHERS,
    "security.protocol",
    "ssl.ca.location",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.token.file",
)


@attrs.frozen
class Target:
    """The broker that a command talks to. ``bootstrap``: ``host:port``, or several with commas between them."""

    bootstrap: str
    properties: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def config(self, command: str) -> "ClientConfig":
        """The configuration of this project's own client. Raises ConfigError."""
        from broker.client.kafka.config import ClientConfig

        defaults = {"client.id": f"broker-{command}"}
        return ClientConfig.from_properties({**defaults, **self.properties, "bootstrap.servers": self.bootstrap})

    @property
    def is_secure(self) -> bool:
        """Whether the settings ask for anything but PLAINTEXT."""
        return self.properties.get("security.protocol", "PLAINTEXT").strip().upper() != "PLAINTEXT"


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a Kafka client; the command gets ``target``."""

    @functools.wraps(function)
    def command(*arguments: Any, bootstrap: str | None, properties: dict[str, str], **others: Any) -> Any:
        source = click.get_current_context().get_parameter_source("bootstrap")
        argument = bootstrap if source is click.core.ParameterSource.COMMANDLINE else None
        named = properties.pop("bootstrap.servers", None) or properties.pop("metadata.broker.list", None)
        address = argument or named or bootstrap or _DEFAULT_ADDRESS
        return function(*arguments, target=Target(_addresses(address), properties), **others)

    return click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        metavar="HOST:PORT",
        envvar="BROKER_BOOTSTRAP_SERVERS",
        help=f"Address of the broker (or BROKER_BOOTSTRAP_SERVERS).  [default: {_DEFAULT_ADDRESS}]",
    )(_settings(command))


compression_option = click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)


class AddressCommand(click.Command):
    """A command with the broker's address as its first argument, which -b may give as well, as for all other
    commands."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        text = "The same as the argument HOST:PORT, which is then left out."
        same = click.Option(["--bootstrap-server", "-b"], metavar="HOST:PORT", expose_value=False, help=text)
        self.params.append(same)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = self.make_parser(ctx).parse_args(list(args))[0].get("bootstrap_server")
        return super().parse_args(ctx, [named, *args] if isinstance(named, str) else args)


def target_without_asking(parameters: Mapping[str, Any]) -> Target:
    """The broker that the options name so far, for a shell that completes a command line. Raises ConfigError if a
    password would have to be asked for."""
    properties = _properties(parameters.get("client_config"), parameters.get("overrides") or (), may_ask=False)
    named = properties.pop("bootstrap.servers", None) or properties.pop("metadata.broker.list", None)
    return Target(_addresses(parameters.get("bootstrap") or named or _DEFAULT_ADDRESS), properties)


def security_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command with the address as an argument; it gets ``security``."""

    @functools.wraps(function)
    def command(*arguments: Any, properties: dict[str, str], **others: Any) -> Any:
        return function(*arguments, security=_security(properties), **others)

    return _settings(command)


def _security(properties: Mapping[str, str]) -> "SecuritySettings":
    # The import costs less than that of a client, and `health` runs often.
    from broker.client.security_settings import SecuritySettings

    return SecuritySettings.from_properties(properties)


def _settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """--client-config and -X, as ``properties``."""

    @functools.wraps(function)
    def command(*arguments: Any, client_config: str | None, overrides: tuple[str, ...], **others: Any) -> Any:
        return function(*arguments, properties=_properties(client_config, overrides), **others)

    file = click.option(
        "--client-config",
        "--command-config",
        "client_config",
        metavar="FILE",
        envvar="BROKER_CLIENT_CONFIG",
        help="Properties file with the settings of a Kafka client, security above all (or BROKER_CLIENT_CONFIG).",
    )
    single = click.option(
        "-X",
        "overrides",
        metavar="NAME=VALUE",
        multiple=True,
        help="One such setting, e.g. security.protocol=SSL; takes precedence over FILE.",
    )
    return file(single(command))


def _properties(file: str | None, overrides: tuple[str, ...], may_ask: bool = True) -> dict[str, str]:
    properties: dict[str, str] = {}
    if file:
        from broker.client.security_settings import parse_properties

        parsed = parse_properties(read_secret_file(file), file)
        # The file may be that of a producer or consumer, with settings that a command does not need.
        properties = {name: value for name, value in parsed.items() if _is_known(name)}
    for pair in overrides:
        name, equals, value = pair.partition("=")
        if not equals:
            # Not shown: it may be a password.
            raise ConfigError("Write -X as -X name=value, for example -X security.protocol=SSL.")
        if name.strip() in _SECRETS:
            raise ConfigError(
                f"Put {name.strip()} into a file and name that with --client-config"
                + (f", or set {_PASSWORD}" if name.strip() == "sasl.password" else "")
                + ": everybody on this machine can see the arguments of a command."
            )
        properties[name.strip()] = value
    user = properties.get("sasl.username", "").strip()
    logs_in = user and "SASL" in properties.get("security.protocol", "").upper()
    if logs_in and not properties.get("sasl.password") and not properties.get("sasl.jaas.config"):
        if not may_ask and not os.environ.get(_PASSWORD):
            raise ConfigError("There is no password.")
        hint = f"in the --client-config file as sasl.password, or in {_PASSWORD}"
        properties["sasl.password"] = read_password(f"the user {user}", None, _PASSWORD, hint=hint)
    if properties:
        _check(properties, {pair.partition("=")[0].strip() for pair in overrides})
    return properties


def _check(properties: dict[str, str], typed: set[str]) -> None:
    """Raises ConfigError for invalid values, and for settings of -X that have no effect."""
    from broker.client.security_settings import SecuritySettings

    left = dict(properties)
    SecuritySettings.take(left)
    for name in typed & left.keys():
        if name not in _OTHERS:
            import difflib

            nearest = difflib.get_close_matches(name, _NAMES, 1)
            hint = (
                f"did you mean {nearest[0]}?"
                if nearest
                else f"-X knows security.*, ssl.*, sasl.*, {', '.join(_OTHERS)}."
            )
            raise ConfigError(f"Leave out -X {name}: it has no effect here; {hint}")
    if properties.get("security.protocol") is None and any(name.startswith(("sasl.", "ssl.")) for name in properties):
        raise ConfigError(
            "Set security.protocol to SSL, SASL_PLAINTEXT or SASL_SSL: without it the other security settings have no effect."
        )


def _is_known(name: str) -> bool:
    return name.startswith(_SECURITY) or name in _OTHERS


def _addresses(value: str) -> str:
    """``host:port``, or several separated by commas. The port is optional."""
    addresses = []
    for address in value.split(","):
        address = re.sub(r"^[A-Za-z_]+://", "", address.strip())
        try:
            host, port = parse_address(address if re.search(r":\d+$", address) else f"{address}:9092", "-b")
        except ConfigError as error:
            raise click.BadParameter(f"write {address!r} as host:port.", param_hint="-b") from error
        addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return ",".join(addresses)
