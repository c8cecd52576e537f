"""-b, --client-config and -X: how a command connects, and in which words it fails."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Broker
from tests import certificates
from tests.cli.conftest import Run
from tests.client.kafka.sasl_gate import SaslGate

PASSWORD = "s3cret-Ä"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    path.write_text(certificates.authority().pem)
    return path


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[SaslGate]:
    """SASL_SSL; alice knows the password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = certificates.server().write(tmp_path / "server")
    context.load_cert_chain(files.both)
    with (
        SaslGate({"alice": PASSWORD}, context) as opened,
        Broker(listeners=(f"kafka://127.0.0.1:0?advertised=localhost:{opened.port}",)) as running,
    ):
        opened.forward_to(running.server.listeners["kafka"])
        running.server.kafka.logs.create_topic("orders", 1, {})
        yield opened


@pytest.fixture
def settings(tmp_path: Path, ca: Path, gate: SaslGate) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(
        f"""bootstrap.servers=localhost:{gate.port}
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" password="{PASSWORD}";
ssl.truststore.type=PEM
ssl.truststore.location={ca}
key.serializer=org.apache.kafka.common.serialization.StringSerializer
"""
    )
    return path


@pytest.mark.parametrize("name", ["sasl.password", "sasl.jaas.config", " ssl.key.password", "sasl.oauthbearer.token"])
def test_secret_argument_is_refused_and_not_repeated(run_alone: Run, name: str) -> None:
    failed = run_alone("topics", "list", "-X", f"{name}=hunter2", fails=2)
    assert f"Put {name.strip()} into a file and name that with --client-config".encode() in failed.stderr
    assert b"hunter2" not in failed.stderr + failed.stdout
    assert (b"BROKER_SASL_PASSWORD" in failed.stderr) == (name == "sasl.password")


def test_every_command_takes_the_settings_of_a_file(run_alone: Run, settings: Path, gate: SaslGate) -> None:
    config = ("--client-config", str(settings))
    run_alone("produce", "orders", *config, stdin=b"one\ntwo\n")
    assert b"one\ntwo\n" == run_alone("consume", "orders", *config).stdout
    assert b"orders\t1\n" == run_alone("topics", "list", *config).stdout
    assert b"" == run_alone("transactions", "list", *config).stdout
    assert b"not found" in run_alone("transactions", "abort", "t", *config, fails=1).stderr
    assert b"answers and serves" in run_alone("health", f"localhost:{gate.port}", "--timeout", "50", *config).stdout


def test_a_token_in_a_file_lets_in(run_alone: Run, settings: Path) -> None:
    (settings.parent / "token").write_text("good.token\n")
    token = ("-X", "sasl.mechanism=OAUTHBEARER", "-X", f"sasl.oauthbearer.token.file={settings.parent / 'token'}")
    assert b"orders\t1\n" == run_alone("topics", "list", "--client-config", str(settings), *token).stdout


def test_an_option_takes_precedence_over_the_file(run_alone: Run, settings: Path, gate: SaslGate) -> None:
    refused = run_alone(
        "topics", "list", "--client-config", str(settings), "-X", "sasl.mechanism=OAUTHBEARER", fails=2
    ).stderr
    assert b"OAUTHBEARER needs sasl.oauthbearer.token" in refused
    elsewhere = run_alone("topics", "list", "--client-config", str(settings), "-b", "localhost:1", fails=1).stderr
    assert b"No broker answers at localhost:1" in elsewhere


def test_login_and_authority_errors_show_no_secret(run_alone: Run, settings: Path, gate: SaslGate) -> None:
    wrong = settings.with_name("wrong.properties")
    wrong.write_text(settings.read_text().replace(PASSWORD, "wrong-one"))
    for command in (("topics", "list"), ("consume", "orders"), ("health", f"localhost:{gate.port}")):
        said = run_alone(*command, "--client-config", str(wrong), fails=1).stderr
        assert b"refuses 'alice' with SCRAM-SHA-256" in said
        assert b"wrong-one" not in said
        assert 1 == said.count(b"\n")
    strange = settings.with_name("strange.properties")
    strange.write_text(settings.read_text().replace("ssl.truststore.location", "ssl.no"))
    said = run_alone("topics", "list", "--client-config", str(strange), fails=1).stderr
    assert b"its certificate is not accepted" in said
    assert b"ssl.truststore.location" in said


def test_tls_mismatch_is_explained_both_ways(run_alone: Run, run: Run, ca: Path, gate: SaslGate) -> None:
    said = run_alone("topics", "list", "-b", f"localhost:{gate.port}", fails=1).stderr
    assert b"is a listener with TLS: set security.protocol to SSL or SASL_SSL" in said
    said = run("topics", "list", "-X", "security.protocol=SSL", "-X", f"ssl.ca.location={ca}", fails=1).stderr
    assert b"No TLS connection" in said or b"security.protocol" in said


def test_useless_settings_are_refused_and_passwords_asked_for(run_alone: Run, tmp_path: Path) -> None:
    for arguments, said in (
        (["-X", "security.protcol=SSL"], b"security.protocol"),
        (["-X", "acks=1"], b"it has no effect here"),
        (["-X", "secret"], b"-X name=value"),
        (["-X", "sasl.username=alice"], b"Set security.protocol"),
        (["-X", "security.protocol=SASL_SSL", "-X", "sasl.username=alice"], b"BROKER_SASL_PASSWORD"),
        (["--client-config", "/no/such/file"], b"/no/such/file cannot be read"),
    ):
        result = run_alone("topics", "list", *arguments, fails=2)
        assert said in result.stderr
        assert b"secret" not in result.stderr
