"""Errors say what is sent to a client, and a person always has something to read."""

from broker.errors import BrokerError, ConfigError, RequestError, StorageError, UnknownOutcome


def test_refusal_has_code_and_optional_message() -> None:
    refusal = RequestError(17, "Name the topic.")
    assert (refusal.code, refusal.message, str(refusal)) == (17, "Name the topic.", "Name the topic.")
    assert (RequestError(17).message, str(RequestError(17))) == ("", "17")


def test_one_except_clause_catches_them_all() -> None:
    assert all(issubclass(each, BrokerError) for each in (ConfigError, RequestError, StorageError, UnknownOutcome))
    assert issubclass(UnknownOutcome, StorageError)
