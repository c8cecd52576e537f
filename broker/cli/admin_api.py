"""Requests of the commands to the admin API on a broker's http:// listener, and the options with its address.

TLS and authentication come from the settings that all commands have (-X, --client-config): a token or a password is
sent only if ``security.protocol`` says so.

Tests: tests/cli/test_subscriptions.py.
"""

import base64
import functools
import json
import re
from collections.abc import Callable
from typing import Any

import attrs
import click
import h11

from broker.cli.broker_options import security_options
from broker.cli.listening import other_service
from broker.client.security_settings import SecuritySettings
from broker.errors import BrokerError
from broker.http.router import NO_ROUTE
from broker.runtime.client_tls import TlsSettings, tls_context
from broker.runtime.dial import dial
from broker.runtime.http_call import exchange
from broker.web.routes import NOT_FOUND

_DEFAULT_URL = "http://localhost:8080"
_URL = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@\s]+))(?::(\d{1,5}))?/?")
_LOCATION = re.compile(r"(https?://[^/]+)(/.*)")
_ELSEWHERE = 307
_CONNECT_S = 5.0
# Longer than a step of a call may wait in the broker.
_ANSWER_S = 60.0
_ANSWER_MAX_BYTES = 64 * 1024 * 1024
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class AdminError(BrokerError):
    """The broker has refused the request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason if reason.endswith(".") else f"{reason}.")
        self.status = status


@attrs.frozen
class AdminApi:
    host: str
    port: int
    security: SecuritySettings = attrs.field(repr=False)
    is_https: bool = False

    def ask(self, method: str, path: str, value: Any = None) -> Any:
        """The answer's JSON; None if it is empty. If another node has what is asked for, it is asked. Raises
        AdminError for a refusal, BrokerError for all other errors."""
        content = b"" if value is None else json.dumps(value).encode()
        status, answer, location = self._answer(method, path, content)
        if status == _ELSEWHERE:
            match = _LOCATION.fullmatch(location)
            if match is None or (self.is_https and not location.startswith("https:")):
                raise BrokerError(
                    f"The broker names another one at {location[:200]!r}, which is no address to go on with."
                )
            api, path = parse_admin_url(match[1], self.security), match[2]
            status, answer, _ = api._answer(method, path, content)
        if status >= 300:
            raise AdminError(status, _reason(status, answer))
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise BrokerError(
                f"The answer of {self.host}:{self.port} is not JSON: is this the admin API of a broker?"
            ) from None

    def _answer(self, method: str, path: str, content: bytes) -> tuple[int, bytes, str]:
        """Status, body, and the address of a redirect."""
        where = f"{self.host}:{self.port}"
        context = tls_context(self.security.tls or TlsSettings()) if self.is_https else None
        try:
            connection = dial(self.host, self.port, _CONNECT_S, context)
        except OSError as error:
            raise BrokerError(
                f"{where} does not answer: {error.strerror or error}. Give the address of the broker's http:// listener with"
                " --admin-url."
            ) from error
        try:
            status, answer, location = exchange(
                connection, method, path, self._headers(content), content, _ANSWER_S, _ANSWER_MAX_BYTES
            )
        except (OSError, h11.RemoteProtocolError) as error:
            other = None if self.is_https else other_service(self.host, self.port, "http", "with --admin-url")
            if other is not None:
                raise other from error
            raise BrokerError(f"The answer of {where} cannot be read: {error}.") from error
        finally:
            connection.close()
        if status == NOT_FOUND and path.startswith("/admin/") and _reason(status, answer) == NO_ROUTE:
            raise BrokerError(f"{where} does not serve Pulsar. Start the broker with a pulsar:// listener, too.")
        return status, answer, location

    def _headers(self, content: bytes) -> list[tuple[str, str]]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        headers = [("host", f"{host}:{self.port}"), ("content-length", str(len(content))), ("connection", "close")]
        sasl = self.security.sasl
        if sasl is not None and sasl.token is not None:
            from broker.client.kafka.config import current_token

            headers.append(("authorization", f"Bearer {current_token(sasl)}"))
        elif sasl is not None:
            proof = base64.b64encode(f"{sasl.username}:{sasl.password}".encode()).decode()
            headers.append(("authorization", f"Basic {proof}"))
        return headers


def admin_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command gets ``api``."""

    @functools.wraps(function)
    def command(*arguments: Any, admin_url: str, security: SecuritySettings, **others: Any) -> Any:
        return function(*arguments, api=parse_admin_url(admin_url, security), **others)

    return click.option(
        "--admin-url",
        "-a",
        metavar="URL",
        default=_DEFAULT_URL,
        envvar="BROKER_ADMIN_URL",
        show_default=True,
        help="The broker's http:// listener (or BROKER_ADMIN_URL).",
    )(security_options(command))


def parse_admin_url(url: str, security: SecuritySettings) -> AdminApi:
    match = _URL.fullmatch(url)
    if match is None or int(match[4] or 0) > 65535:
        raise click.BadParameter(f"write {url!r} as http://host:port.", param_hint="--admin-url")
    is_https = match[1] == "https"
    return AdminApi(match[2] or match[3], int(match[4] or (443 if is_https else 8080)), security, is_https)


def quoted(text: str) -> str:
    """Encode a text as one segment of a path."""
    return "".join(
        chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape")
    )


def _reason(status: int, answer: bytes) -> str:
    try:
        reason = json.loads(answer)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = ""
    return str(reason) or f"The broker refuses with status {status}"
