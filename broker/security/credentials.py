"""SCRAM credentials: what the broker stores instead of passwords. A password cannot be computed from them.

``Credentials`` is a copy in memory of the catalogue's table. Any thread may ask; a change waits for the catalogue.
``make_row`` also serves programs that change the table of a broker that is not running.
"""

import hmac
from collections import Counter
from collections.abc import Iterable, Mapping

from broker.errors import ConfigError, Refusal, UnknownOutcome
from broker.metadata.catalogue import Catalogue, CredentialRow
from broker.runtime.entropy import Entropy
from broker.runtime.threads import Lock
from protocol.sasl.scram import HASHES, USER_MAX_BYTES, salted_bytes, salted_password, stored_keys

# Kafka's limits of the number of iterations. More would only keep clients, and with PLAIN the broker, busy.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
DEFAULT_ITERATIONS = 4096
MECHANISMS = tuple(sorted(HASHES))
# Bytes of a salt that a client may give. The salt is sent to every client that names the user. Kafka's clients use 20
# to 64.
SALT_MAX_BYTES = 1024
_SALT_BYTES = 32
# The name under which the catalogue keeps the secret from which the salts of unknown users are derived.
_SECRET = "sasl_secret"


class UnacceptableCredential(Refusal):
    """A credential that must not be stored."""


def make_row(
    user: str, mechanism: str, password: str, entropy: Entropy, iterations: int = DEFAULT_ITERATIONS
) -> CredentialRow:
    """The row for a password, as `kafka-configs --add-config SCRAM-SHA-512=[password=...]` makes it. Raises
    ConfigError.

    ``catalogue.alter_credentials([row], [])`` stores it, also in the data directory of a broker that is not running.
    """
    if mechanism not in HASHES:
        raise ConfigError(
            f"Choose one of the mechanisms {', '.join(MECHANISMS)}: {mechanism!r} has no stored credentials."
        )
    if not password or not _is_unicode(password):
        raise ConfigError(f"Give the user {user[:100]!r} a password of at least one character, all of them Unicode.")
    salt = entropy.bytes(_SALT_BYTES)
    try:
        check(user, iterations, salt)
    except UnacceptableCredential as error:
        raise ConfigError(f"The credential of {user[:100]!r} cannot be stored: {error.message}.") from None
    return row_of(user, mechanism, salt, iterations, salted_password(mechanism, password, salt, iterations))


def row_of(user: str, mechanism: str, salt: bytes, iterations: int, salted: bytes) -> CredentialRow:
    """The row for a salted password that the client has computed."""
    return CredentialRow(user, mechanism, salt, *stored_keys(mechanism, salted), iterations)


def check(user: str, iterations: int, salt: bytes) -> None:
    """Raises UnacceptableCredential, with Kafka's messages where Kafka refuses it as well."""
    if not user:
        raise UnacceptableCredential("Username must not be empty")
    if not _is_unicode(user):
        raise UnacceptableCredential("Username must be Unicode")
    if len(user.encode()) > USER_MAX_BYTES:
        raise UnacceptableCredential(f"Username must not be longer than {USER_MAX_BYTES} bytes")
    if iterations < ITERATIONS_MIN:
        raise UnacceptableCredential("Too few iterations")
    if iterations > ITERATIONS_MAX:
        raise UnacceptableCredential("Too many iterations")
    if not 0 < len(salt) <= SALT_MAX_BYTES:
        raise UnacceptableCredential(f"The salt must have 1 to {SALT_MAX_BYTES} bytes")


def _is_unicode(text: str) -> bool:
    """False for text of a command line that was not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Iterations and the length of the salt of an unknown user while there are no users.
_USUAL = DEFAULT_ITERATIONS, _SALT_BYTES


class Credentials:
    """``find`` answers for every user: the credential of an unknown user has a constant salt and keys that match no
    password.

    The answer and the time that it takes do not tell whether a user exists, except for users with other iterations or another
    length of the salt than most.
    """

    def __init__(self, catalogue: Catalogue, entropy: Entropy) -> None:
        self._catalogue = catalogue
        self._entropy = entropy
        self._rows: dict[str, dict[str, CredentialRow]] = {mechanism: {} for mechanism in MECHANISMS}
        # By mechanism: how many credentials have these iterations and a salt of this length.
        self._kinds: dict[str, Counter[tuple[int, int]]] = {mechanism: Counter() for mechanism in MECHANISMS}
        self._usual = dict.fromkeys(MECHANISMS, _USUAL)
        self._usual_mechanism = MECHANISMS[0]  # the mechanism of most users, as `find_any` chooses it
        self._secret = b""
        self._lock = Lock()  # for changes
        # By user and mechanism: credentials of which it is unknown whether the catalogue has the same as is in force.
        self._doubtful: set[tuple[str, str]] = set()

    def open(self, with_logins: bool) -> None:
        """Load everything. ``with_logins``: users may log in, so the secret of the cluster is needed. Raises StorageError."""
        for row in self._catalogue.load_credentials():
            if row.mechanism in self._rows:
                self._put(row)
        self._find_usual()
        if with_logins:
            secret = self._catalogue.meta(_SECRET)
            if secret is None:
                secret = self._entropy.bytes(32).hex()
                self._catalogue.set_meta(_SECRET, secret)
            self._secret = bytes.fromhex(secret)

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            stored = {(row.user, row.mechanism): row for row in self._catalogue.load_credentials()}
            present = {(user, mechanism) for mechanism, rows in self._rows.items() for user in rows}
            for user, mechanism in present - stored.keys():
                self._forget(user, mechanism)
            for row in stored.values():
                if row.mechanism in self._rows and self._rows[row.mechanism].get(row.user) != row:
                    self._put(row)
            self._find_usual()

    def of_user(self, user: str) -> Mapping[str, int]:
        """The user's iterations by mechanism. Empty for an unknown user."""
        rows_of_user = ((mechanism, rows.get(user)) for mechanism, rows in self._rows.items())
        return {mechanism: row.iterations for mechanism, row in rows_of_user if row is not None}

    def may_be_stored(self, user: str, mechanism: str) -> bool:
        """Whether the next start may read such a credential: then it can be deleted."""
        return user in self._rows[mechanism] or (user, mechanism) in self._doubtful

    def users(self) -> list[str]:
        """All users with a credential, sorted."""
        return sorted({user for rows in self._rows.values() for user in rows.copy()})

    def find(self, user: str, mechanism: str) -> tuple[CredentialRow, bool]:
        """The credential, and whether it is real."""
        row = self._rows[mechanism].get(user)
        return (row, True) if row is not None else (self._invented(user, mechanism), False)

    def find_any(self, user: str) -> tuple[CredentialRow, bool]:
        """A credential of any mechanism: the cheapest to compare with a password."""
        for mechanism in MECHANISMS:  # SHA-256 first, which takes less than half of the time
            row = self._rows[mechanism].get(user)
            if row is not None:
                return row, True
        return self._invented(user, self._usual_mechanism), False

    def set_password(self, user: str, password: str, entropy: Entropy) -> None:
        """For all mechanisms; the user is added if need be. Raises ConfigError, StorageError."""
        self.alter([make_row(user, mechanism, password, entropy) for mechanism in MECHANISMS], [])

    def alter(self, put: Iterable[CredentialRow], deleted: Iterable[tuple[str, str]]) -> None:
        """Delete the credentials ``deleted`` (user, mechanism), then insert or replace ``put``, durably: all or none.
        Raises StorageError.

        Later logins use them. Connections that have logged in stay, as in Kafka. After UnknownOutcome the next start
        may read either state; deleting the credential makes sure that it does not come back.
        """
        put, deleted = list(put), list(deleted)
        concerned = {*deleted, *((row.user, row.mechanism) for row in put)}
        with self._lock:
            try:
                self._catalogue.alter_credentials(put, deleted)
            except UnknownOutcome:
                self._doubtful |= concerned
                raise
            self._doubtful -= concerned
            for user, mechanism in deleted:
                self._forget(user, mechanism)
            for row in put:
                self._put(row)
            self._find_usual()

    def _put(self, row: CredentialRow) -> None:
        previous = self._rows[row.mechanism].get(row.user)
        if previous is not None:
            self._kinds[row.mechanism][previous.iterations, len(previous.salt)] -= 1
        self._rows[row.mechanism][row.user] = row
        self._kinds[row.mechanism][row.iterations, len(row.salt)] += 1

    def _forget(self, user: str, mechanism: str) -> None:
        row = self._rows[mechanism].pop(user, None)
        if row is not None:
            self._kinds[mechanism][row.iterations, len(row.salt)] -= 1

    def _find_usual(self) -> None:
        """Find the most frequent kind of credential. Invented credentials of unknown users look like it."""
        for mechanism, kinds in self._kinds.items():
            for kind in [kind for kind, count in kinds.items() if not count]:
                del kinds[kind]
            # Of equally frequent kinds the largest, whatever the order of the changes: it must be the same after a
            # restart.
            self._usual[mechanism] = max(kinds, key=lambda kind: (kinds[kind], kind), default=_USUAL)

        seen: set[str] = set()
        most, self._usual_mechanism = 0, MECHANISMS[0]
        for mechanism in MECHANISMS:
            before = len(seen)
            seen |= self._rows[mechanism].keys()
            if len(seen) - before > most:
                most, self._usual_mechanism = len(seen) - before, mechanism

    def _invented(self, user: str, mechanism: str) -> CredentialRow:
        iterations, salt_bytes = self._usual[mechanism]
        name = user.encode()

        def drawn(purpose: bytes, size: int) -> bytes:
            blocks = range(-(-size // 64))
            label = purpose + mechanism.encode()
            parts = (hmac.digest(self._secret, label + bytes([block]) + name, "sha512") for block in blocks)
            return b"".join(parts)[:size]

        size = salted_bytes(mechanism)
        salt = drawn(b"salt", salt_bytes)
        return CredentialRow(user, mechanism, salt, drawn(b"key1", size), drawn(b"key2", size), iterations)
