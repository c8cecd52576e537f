"""How a client comes in: the protocol of the listener, what it trusts, and what it shows."""

from pathlib import Path

import attrs

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@attrs.frozen
class Access:
    """Files are PEM. Without ``mechanism`` the client does not log in; without ``certificate`` it shows none."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    trust: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        shown = ["certificate"] if self.certificate else []
        return "-".join([self.protocol, *([self.mechanism] if self.mechanism else []), *shown])

    @property
    def encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        return self.protocol.startswith("SASL")
