"""The server's side of SCRAM against independent clients, and against invalid messages."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient as Scramp

from protocol.errors import ProtocolError
from protocol.sasl.scram import HASHES, MESSAGE_MAX_BYTES, ScramClient, ScramServer, salted_password, stored_keys

SALT = bytes(range(20))
# Names that SASLprep leaves as they are: other clients prepare names, Kafka's do not.
_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=50)


def keys(mechanism: str, password: str = "secret") -> tuple[bytes, bytes]:
    return stored_keys(mechanism, salted_password(mechanism, password, SALT, 4096))


def challenged(mechanism: str, first: bytes, nonce: str = "server") -> tuple[ScramServer, str]:
    server = ScramServer(mechanism)
    server.first(first)
    return server, server.challenge(SALT, 4096, *keys(mechanism), nonce).decode()


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_independent_client_logs_in_with_the_right_password(mechanism: str, password: str) -> None:
    client = Scramp([mechanism], "al,i=ce", password)
    server = ScramServer(mechanism)
    assert "al,i=ce" == server.first(client.get_client_first().encode())
    client.set_server_first(server.challenge(SALT, 4096, *keys(mechanism), "server").decode())
    answer = server.final(client.get_client_final().encode())
    if password == "secret":
        assert answer is not None
        client.set_server_final(answer.decode())
    else:
        assert answer is None


@given(_names, st.sampled_from(sorted(HASHES)))
def test_any_name_goes_through_unchanged(name: str, mechanism: str) -> None:
    client = ScramClient(mechanism, name, "secret", "client")
    server = ScramServer(mechanism)
    assert name == server.first(client.first())
    answer = server.final(client.final(server.challenge(SALT, 4096, *keys(mechanism), "server")))
    assert answer is not None
    client.verify(answer)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=alice",
        b"n,,r=nonce,n=alice",
        b"n,,n=,r=nonce",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=no\x00nce",
        b"n,,n=alice,r=no nce",
        b"n,,n=al=ice,r=nonce",
        b"n,,n=al=2cice,r=nonce",
        b"n,,n=al\x00ice,r=nonce",
        b"n,,m=ext,n=alice,r=nonce",
        b"n,,n=alice,r=nonce,m=ext",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,a=bob,n=alice,r=nonce",
        b"n,a=,n=alice,r=nonce",
        b"x,,n=alice,r=nonce",
        b"n,,n=\xff,r=nonce",
        b"n,,n=u\xed\xa0\x80,r=nonce",
        b"n,,n=" + b"a" * 1001 + b",r=nonce",
        b"n,,n=alice,r=" + b"a" * MESSAGE_MAX_BYTES,
        b"n,,n=" + b"a" * 2**20 + b",r=nonce",
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        ScramServer("SCRAM-SHA-256").first(message)
    assert "alice" not in str(refused.value)


@pytest.mark.parametrize(
    "message", [b"n,a=alice,n=alice,r=nonce", b"y,,n=alice,r=nonce", b"n,,n=alice,r=nonce,tokenauth=true,x=y"]
)
def test_what_the_standard_allows_is_taken(message: bytes) -> None:
    assert "alice" == ScramServer("SCRAM-SHA-256").first(message)


def test_the_last_message_belongs_to_its_exchange() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "client")
    server, challenge = challenged("SCRAM-SHA-256", client.first())
    last = client.final(challenge.encode())
    assert server.final(last) is not None

    replayed, _ = challenged("SCRAM-SHA-256", client.first(), nonce="another")
    with pytest.raises(ProtocolError, match="another exchange"):
        replayed.final(last)
    bound, _ = challenged("SCRAM-SHA-256", b"y" + client.first()[1:])
    with pytest.raises(ProtocolError, match="another exchange"):
        bound.final(last)


@pytest.mark.parametrize("proof", [b"", b"p", b"!!!!", base64.b64encode(b"short"), b"A" * 43, b"A" * 2**20])
def test_a_proof_of_no_use_is_refused(proof: bytes) -> None:
    server, _ = challenged("SCRAM-SHA-256", b"n,,n=alice,r=client")
    with pytest.raises(ProtocolError):
        server.final(b"c=biws,r=clientserver,p=" + proof)


@given(st.binary(max_size=200), st.sampled_from(sorted(HASHES)))
def test_any_bytes_are_refused_and_never_let_in(message: bytes, mechanism: str) -> None:
    with pytest.raises(ProtocolError):
        ScramServer(mechanism).first(message)
    server, _ = challenged(mechanism, b"n,,n=alice,r=client")
    with pytest.raises(ProtocolError):
        server.final(message)


@given(st.text(st.sampled_from("nyp=,arciwsbe0Am \0"), max_size=40))
def test_nearly_right_messages_are_read_or_refused(text: str) -> None:
    server = ScramServer("SCRAM-SHA-512")
    try:
        user = server.first(text.encode())
    except ProtocolError:
        return
    assert user
    server.challenge(SALT, 4096, *keys("SCRAM-SHA-512"), "server")
    try:
        assert server.final(text.encode()) is None
    except ProtocolError:
        pass


@given(st.integers(0, 31), st.integers(1, 255))
def test_proof_with_a_changed_byte_is_refused(position: int, change: int) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "client")
    server, challenge = challenged("SCRAM-SHA-256", client.first())
    without, _, proof = client.final(challenge.encode()).rpartition(b",p=")
    wrong = bytearray(base64.b64decode(proof))
    wrong[position] ^= change
    assert server.final(without + b",p=" + base64.b64encode(wrong)) is None
