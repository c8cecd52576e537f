"""Principals and their text."""

import pytest

from broker.errors import ConfigError
from broker.security.principal import ANONYMOUS, Principal, parse_principal


@pytest.mark.parametrize("name", ["alice", "CN=a,OU=b", "a:b", "ü ⇒", "*"])
def test_principal_is_written_as_type_and_name(name: str) -> None:
    assert Principal("User", name) == parse_principal(f"User:{name}")
    assert f"User:{name}" == str(Principal("User", name))


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_a_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="as TYPE:NAME, for example User:alice"):
        parse_principal(text)


def test_a_client_that_nobody_asks_is_anonymous() -> None:
    assert "User:ANONYMOUS" == str(ANONYMOUS)
