"""Credentials as the broker keeps them: made from passwords, changed durably, and invented for users that do not exist."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import CredentialRow
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    Credentials,
    UnacceptableCredential,
    check,
    make_row,
)
from protocol.sasl.scram import USER_MAX_BYTES, salted_password, stored_keys
from tests.sim.catalogue import SimCatalogue, Tables

KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


def opened(catalogue: SimCatalogue) -> Credentials:
    credentials = Credentials(catalogue, SystemEntropy())
    credentials.open(with_logins=True)
    return credentials


def row(user: str, mechanism: str = "SCRAM-SHA-256", iterations: int = ITERATIONS_MIN) -> CredentialRow:
    return make_row(user, mechanism, "secret", SystemEntropy(), iterations)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_row_depends_on_password_and_random_salt(mechanism: str) -> None:
    one, other = row("alice", mechanism), row("alice", mechanism)
    assert one.salt != other.salt
    assert stored_keys(mechanism, salted_password(mechanism, "secret", one.salt, 4096)) == one[3:5]
    assert "secret" not in repr(one)


@pytest.mark.parametrize(
    ("user", "mechanism", "password", "iterations", "message"),
    [
        ("alice", "PLAIN", "secret", 4096, "one of the mechanisms SCRAM-SHA-256, SCRAM-SHA-512"),
        ("alice", "SCRAM-SHA-256", "", 4096, "at least one character"),
        ("alice", "SCRAM-SHA-256", "\udc80", 4096, "all of them Unicode"),
        ("", "SCRAM-SHA-256", "secret", 4096, "Username must not be empty"),
        ("\udc80", "SCRAM-SHA-256", "secret", 4096, "Username must be Unicode"),
        ("a" * (USER_MAX_BYTES + 1), "SCRAM-SHA-256", "secret", 4096, "must not be longer than 1000 bytes"),
        ("alice", "SCRAM-SHA-256", "secret", ITERATIONS_MIN - 1, "Too few iterations"),
        ("alice", "SCRAM-SHA-256", "secret", ITERATIONS_MAX + 1, "Too many iterations"),
        ("alice", "SCRAM-SHA-256", "secret", 2**31, "Too many iterations"),
    ],
)
def test_unacceptable_credential_is_refused(
    user: str, mechanism: str, password: str, iterations: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        make_row(user, mechanism, password, SystemEntropy(), iterations)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("salt", [b"", bytes(1025)])
def test_a_salt_has_a_length(salt: bytes) -> None:
    with pytest.raises(UnacceptableCredential, match="1 to 1024 bytes"):
        check("alice", 4096, salt)


def test_changes_are_durable_and_seen_at_once() -> None:
    catalogue = SimCatalogue(None, Tables())
    credentials = opened(catalogue)
    alice, bob, again = row("alice"), row("bob", "SCRAM-SHA-512", 8192), row("alice", iterations=5000)
    credentials.alter([alice, bob], [])
    credentials.alter([again], [("bob", "SCRAM-SHA-512"), ("alice", "SCRAM-SHA-256")])
    for each in (credentials, opened(catalogue)):
        assert ["alice"] == each.users()
        assert {"SCRAM-SHA-256": 5000} == each.of_user("alice")
        assert {} == each.of_user("bob")
        assert (again, True) == each.find("alice", "SCRAM-SHA-256") == each.find_any("alice")
        assert not each.find("bob", "SCRAM-SHA-512")[1]


def test_a_change_that_fails_changes_nothing() -> None:
    class Broken(SimCatalogue):
        def alter_credentials(self, put: object, deleted: object) -> None:
            raise StorageError("the disk is full")

    credentials = opened(Broken(None, Tables()))
    with pytest.raises(StorageError):
        credentials.alter([row("alice")], [])
    assert [] == credentials.users()


def test_unknown_user_s_credential_is_constant_and_unique() -> None:
    catalogue = SimCatalogue(None, Tables())
    credentials = opened(catalogue)
    for mechanism in MECHANISMS:
        invented, known = credentials.find("nobody", mechanism)
        assert not known
        assert (invented, False) == opened(catalogue).find("nobody", mechanism)
        assert invented.salt != credentials.find("nobody2", mechanism)[0].salt
        assert invented.salt != opened(SimCatalogue(None, Tables())).find("nobody", mechanism)[0].salt
        assert KEY_BYTES[mechanism] == len(invented.stored_key) == len(invented.server_key)


def test_an_unknown_user_looks_like_most_users() -> None:
    credentials = opened(SimCatalogue(None, Tables()))

    def looks(mechanism: str) -> tuple[int, int]:
        invented, _ = credentials.find("nobody", mechanism)
        return invented.iterations, len(invented.salt)

    assert (4096, 32) == looks("SCRAM-SHA-256")
    credentials.alter([row(name, iterations=8192)._replace(salt=bytes(100)) for name in "ab"] + [row("c")], [])
    assert (8192, 100) == looks("SCRAM-SHA-256")
    assert (4096, 32) == looks("SCRAM-SHA-512")
    credentials.alter([], [("a", "SCRAM-SHA-256"), ("b", "SCRAM-SHA-256")])
    assert (4096, 32) == looks("SCRAM-SHA-256")


def test_password_is_compared_with_the_cheapest_credential() -> None:
    credentials = opened(SimCatalogue(None, Tables()))
    credentials.alter([row("both"), row("both", "SCRAM-SHA-512")], [])
    assert "SCRAM-SHA-256" == credentials.find_any("nobody")[0].mechanism
    credentials.alter([row("one", "SCRAM-SHA-512"), row("two", "SCRAM-SHA-512")], [])
    assert "SCRAM-SHA-256" == credentials.find_any("both")[0].mechanism
    assert "SCRAM-SHA-512" == credentials.find_any("one")[0].mechanism
    assert "SCRAM-SHA-512" == credentials.find_any("nobody")[0].mechanism  # as most users


_changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(MECHANISMS), st.sampled_from((None, 4096, 5000))), max_size=20
)


@settings(max_examples=50)
@given(_changes)
def test_after_any_changes_the_copy_is_the_catalogue(changes: list[tuple[str, str, int | None]]) -> None:
    catalogue = SimCatalogue(None, Tables())
    credentials = opened(catalogue)
    for user, mechanism, iterations in changes:
        if iterations is None:
            credentials.alter([], [(user, mechanism)])
        else:
            credentials.alter([CredentialRow(user, mechanism, b"salt", b"k", b"k", iterations)], [])
    fresh = opened(catalogue)
    for mechanism in MECHANISMS:
        for user in "abcd":
            assert fresh.find(user, mechanism) == credentials.find(user, mechanism)
    assert fresh.users() == credentials.users()
