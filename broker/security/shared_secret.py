"""Logins of users who all have one password, which is drawn at the start and stored nowhere: the nodes of a cluster.

Any thread may ask.

Tests: tests/security/test_shared_secret.py.
"""

from collections.abc import Callable

from broker.metadata.catalogue import CredentialRow
from broker.runtime.entropy import Entropy
from broker.security.credentials import make_row


class SharedSecret:
    """Answers as ``Credentials.find`` does, for one mechanism."""

    def __init__(self, mechanism: str, secret: str, is_user: Callable[[str], bool], entropy: Entropy) -> None:
        """``is_user``: whether a name is that of one of the users."""
        self._row = make_row("nodes", mechanism, secret, entropy)
        self._is_user = is_user

    def find(self, user: str, mechanism: str) -> tuple[CredentialRow, bool]:
        assert mechanism == self._row.mechanism
        return self._row, self._is_user(user)
