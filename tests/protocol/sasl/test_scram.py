import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.sasl.scram import HASHES, ScramClient

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(mechanism: str = "SCRAM-SHA-256", user: str = "user") -> ScramClient:
    return ScramClient(mechanism, user, "pencil", NONCE)


def test_the_exchange_of_the_rfc() -> None:
    exchange = client()
    assert FIRST == exchange.first()
    assert FINAL == exchange.final(SERVER_FIRST)
    exchange.verify(SERVER_FINAL)


def test_a_server_with_another_proof_is_refused() -> None:
    exchange = client()
    exchange.final(SERVER_FIRST)
    with pytest.raises(ProtocolError, match="does not know the password either"):
        exchange.verify(b"v=" + base64.b64encode(bytes(32)))


def test_a_proof_before_the_exchange_is_none() -> None:
    with pytest.raises(ProtocolError):
        client().verify(b"v=")


def test_what_the_server_says_is_passed_on() -> None:
    with pytest.raises(ProtocolError, match="invalid-proof"):
        client().verify(b"e=invalid-proof")


@pytest.mark.parametrize(
    "message",
    [
        SERVER_FIRST.replace(b"rOpr", b"xOpr"),  # not our nonce
        b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096",  # nothing added to it
        SERVER_FIRST.replace(b"4096", b"1"),
        SERVER_FIRST.replace(b"4096", b"999999999999999999999"),
        SERVER_FIRST.replace(b"4096", b"-4096"),
        SERVER_FIRST.replace(b"W22", b"\xc3\xa422"),
        b"m=x," + SERVER_FIRST,
        b"",
    ],
)
def test_untrustworthy_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        client().final(message)


@pytest.mark.parametrize("mechanism", HASHES)
@given(st.binary(max_size=60))
def test_any_bytes_raise_nothing_but_protocol_errors(mechanism: str, message: bytes) -> None:
    for step in (client(mechanism).final, client(mechanism).verify):
        with pytest.raises(ProtocolError):
            step(message)


def test_commas_in_a_name_are_escaped() -> None:
    assert b"n,,n=a=2Cb=3Dc,r=" + NONCE.encode() == client(user="a,b=c").first()


def test_the_password_does_not_show() -> None:
    assert "pencil" not in repr(client())
