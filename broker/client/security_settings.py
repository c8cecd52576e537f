"""The security settings of a client, by the names of Kafka's Java clients and librdkafka, and Java properties files.
Pure.

``SecuritySettings`` is a value: it can be pickled and sent to the process in which the client will run.
``parse_properties`` reads the files in which Kafka's tools take the settings of a client (``--command-config``).
Secrets appear neither in reprs nor in any message of this module; no error shows a value, because it may be a password.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from broker.errors import ConfigError
from broker.runtime.client_tls import TlsSettings
from protocol.sasl.scram import HASHES

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_FILE_URL = "file://"


@attrs.frozen
class TokenFile:
    """A file with a token, which is read for each login, so that replacing the file replaces the token."""

    path: str


# How a client gets its token. A function is called for each login, on the thread that logs in.
Token = str | TokenFile | Callable[[], str]


@attrs.frozen
class Sasl:
    """Who logs in. ``token`` is for OAUTHBEARER, the name and the password are for the other mechanisms."""

    mechanism: str
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    token: Token | None = attrs.field(default=None, repr=False)

    @property
    def who(self) -> str:
        """The user, for messages."""
        return "the token" if self.token is not None else repr(self.username)


@attrs.frozen
class SecuritySettings:
    """``tls`` None: no TLS; ``sasl`` None: no login."""

    tls: TlsSettings | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol."""
        return PROTOCOLS[(2 if self.sasl else 0) + (1 if self.tls else 0)]

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "SecuritySettings":
        """Ignores names that are not about security. Raises ConfigError with one sentence that says what to change."""
        return cls.take({str(name): setting_value(value) for name, value in properties.items()})

    @classmethod
    def take(cls, settings: dict[str, Any]) -> "SecuritySettings":
        """Remove the security settings from ``settings``, which has ``setting_value``s. Raises ConfigError."""
        protocol = settings.pop("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"security.protocol must be {', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}, not {protocol!r}."
            )
        tls, sasl = _tls(settings), _sasl(settings, "SASL" in protocol)
        return cls(tls if "SSL" in protocol else None, sasl)


def setting_value(value: Any) -> Any:
    """A setting as text. Functions stay unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if callable(value) else str(value).strip()


# -- TLS --------------------------------------------------------------------------------------------------------


def _tls(settings: dict[str, Any]) -> TlsSettings:
    stores = {}
    for store in ("truststore", "keystore"):
        location, kind = settings.pop(f"ssl.{store}.location", None), settings.pop(f"ssl.{store}.type", None)
        password = settings.pop(f"ssl.{store}.password", None)
        kind = (kind or ("PKCS12" if (location or "").endswith((".p12", ".pfx")) else "PEM")).upper()
        if location and (kind not in ("PEM", "PKCS12") or location.endswith(".jks")):
            raise ConfigError(
                f"ssl.{store}.location must be a PEM or PKCS12 file here, not {location!r} of the type {kind}:"
                f" keytool can convert a Java key store."
            )
        stores[store] = (location, password if kind == "PKCS12" else None, kind == "PKCS12")
    (truststore, trust_password, trust_pkcs12), (keystore, key_store_password, key_pkcs12) = stores.values()
    algorithm = settings.pop("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise ConfigError(
            f"ssl.endpoint.identification.algorithm must be https, or none to accept any host name, not {algorithm!r}."
        )
    certificates = settings.pop("ssl.truststore.certificates", None)
    chain = settings.pop("ssl.keystore.certificate.chain", None)
    key = settings.pop("ssl.keystore.key", None)
    return TlsSettings(
        ca_file=settings.pop("ssl.ca.location", None) or (None if trust_pkcs12 else truststore),
        ca_data=settings.pop("ssl.ca.pem", None) or certificates,
        ca_pkcs12=truststore if trust_pkcs12 else None,
        ca_password=trust_password,
        certificate_file=settings.pop("ssl.certificate.location", None) or (None if key_pkcs12 else keystore),
        key_file=settings.pop("ssl.key.location", None),
        certificate_data=settings.pop("ssl.certificate.pem", None) or chain,
        key_data=settings.pop("ssl.key.pem", None) or key,
        key_pkcs12=keystore if key_pkcs12 else None,
        key_password=settings.pop("ssl.key.password", None) or key_store_password,
        check_hostname=algorithm == "https",
        verify=_flag(
            "enable.ssl.certificate.verification", settings.pop("enable.ssl.certificate.verification", "true")
        ),
    )


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {text!r}.")
    return text.lower() == "true"


# -- SASL -------------------------------------------------------------------------------------------------------


def _sasl(settings: dict[str, Any], used: bool) -> Sasl | None:
    mechanism = settings.pop("sasl.mechanisms", "")
    mechanism = settings.pop("sasl.mechanism", mechanism).upper()
    username, password = settings.pop("sasl.username", None), settings.pop("sasl.password", None)
    jaas = settings.pop("sasl.jaas.config", None)
    token = _token(settings)
    if not used:
        return None
    if jaas:
        module, options = parse_jaas(jaas)
        username, password = username or options.get("username"), password or options.get("password")
        token = token or options.get("token")
        if not mechanism:
            mechanism = _MECHANISM_OF_MODULE.get(module.rpartition(".")[2], "")
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}.")
    if mechanism == OAUTHBEARER:
        if not token:
            raise ConfigError(
                "OAUTHBEARER needs sasl.oauthbearer.token, or sasl.oauthbearer.token.file with the name of a file."
            )
        return Sasl(mechanism, token=token)
    if not username or password is None:
        raise ConfigError(f"{mechanism} needs sasl.username and sasl.password, or sasl.jaas.config with both.")
    return Sasl(mechanism, username, password)


# The module of SCRAM does not state which of its mechanisms is meant.
_MECHANISM_OF_MODULE = {"PlainLoginModule": PLAIN, "OAuthBearerLoginModule": OAUTHBEARER}


def _token(settings: dict[str, Any]) -> Token | None:
    token = settings.pop("sasl.oauthbearer.token", None)
    file = settings.pop("sasl.oauthbearer.token.file", None)
    url = settings.pop("sasl.oauthbearer.token.endpoint.url", None)
    if url and not file:
        if not url.lower().startswith(_FILE_URL):
            raise ConfigError(
                "sasl.oauthbearer.token.endpoint.url must be a file:// URL here: this client asks no server for tokens."
            )
        file = url[len(_FILE_URL) :]
    if callable(token) or token:
        return token  # type: ignore[no-any-return]
    return TokenFile(file) if file else None


_JAAS_OPTION = re.compile(
    r"""\s*([A-Za-z_][\w.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))(?=\s|;|\Z)""", re.S
)


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Login module and options of ``sasl.jaas.config``. No error shows the text, because it contains the password."""
    broken = ConfigError('sasl.jaas.config must read: <login module> required username="..." password="...";')
    head = re.match(r"\s*([A-Za-z_][\w.$]*)\s+(?:required|requisite|sufficient|optional)\b", text, re.I)
    if head is None:
        raise broken
    options: dict[str, str] = {}
    position = head.end()
    while True:
        option = _JAAS_OPTION.match(text, position)
        if option is None:
            break
        name, *values = option.groups()
        value = next(value for value in values if value is not None)
        options[name] = re.sub(r"\\(.)", r"\1", value) if option.group(4) is None else value
        position = option.end()
    if text[position:].strip() not in ("", ";"):
        raise broken
    return head.group(1), options


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
# A key ends at the first separator that has no backslash before it.
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.S)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Name -> value; a later line takes precedence. Raises ConfigError, which names ``source`` and the line."""
    settings: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # it matches the empty string
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        where = f"{source}, line {number}"
        settings[_unescaped(key.group(), where)] = _unescaped(line[separator.end() :], where)
    return settings


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """The lines with a setting, their continuations joined, each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    continued = False
    for number, match in enumerate(_LINE.finditer(text.removeprefix("\ufeff")), 1):
        line = match.group().rstrip("\r\n").lstrip(_BLANK)
        if not continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        more = backslashes % 2 == 1
        part = line[:-1] if more else line
        if continued:
            lines[-1] = (lines[-1][0], lines[-1][1] + part)
        else:
            lines.append((number, part))
        continued = more
    return lines


def _unescaped(text: str, where: str) -> str:
    if "\\" not in text:
        return text

    def replaced(match: re.Match[str]) -> str:
        if match["code"] is not None:
            return chr(int(match["code"], 16))
        if match["letter"] == "u":
            raise ConfigError(f"Write \\u with four hexadecimal digits in {where}, and a backslash as two.")
        return _ESCAPES.get(match["letter"], match["letter"])

    plain = re.sub(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<letter>.))", replaced, text, flags=re.S)
    # Java writes a character beyond the first 65,536 as two escapes.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
