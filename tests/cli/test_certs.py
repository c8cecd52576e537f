"""`broker certs`: the files, and what happens to those that exist."""

import json
import os
import shlex
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.serialization import pkcs12

from tests.cli.conftest import Run, Serving


def test_one_command_makes_all_certificates_and_properties(run_alone: Run, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    said = run_alone("certs", str(certs), "--client", "alice", "--host", "broker.example").stdout.decode()
    assert "broker.example" in said
    *_, serve, topics = said.splitlines()
    assert serve.startswith("broker serve --listener kafka+ssl://")
    assert topics.endswith(f"--client-config {certs / 'alice.properties'}")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certs.iterdir()}
    secret = {"ca.key", "server.pem", "alice.pem"}
    assert secret | {"ca.crt", "alice.properties", "client.properties"} == set(modes)
    assert {0o600} == {modes[name] for name in secret}
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.load_cert_chain(certs / "server.pem")
    context.load_cert_chain(certs / "alice.pem")
    lines = (certs / "alice.properties").read_text().splitlines()
    assert {
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={certs / 'ca.crt'}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={certs / 'alice.pem'}",
    } == set(lines)


def test_made_files_are_listed_as_json(run_alone: Run, tmp_path: Path) -> None:
    said = run_alone("certs", str(tmp_path / "certs"), "--host", "broker.example", "--output", "json").stdout
    names = {Path(made["file"]).name: made["names"] for made in map(json.loads, said.splitlines())}
    assert {"ca.key", "ca.crt", "server.pem", "client.properties"} == set(names)
    assert "broker.example" in names["server.pem"]


def test_an_existing_authority_signs_another_client(run_alone: Run, tmp_path: Path) -> None:
    run_alone("certs", str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run_alone("certs", str(tmp_path), "--client", "bob")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before == {name: data for name, data in after.items() if name in before}
    assert {"bob.pem", "bob.properties"} == after.keys() - before.keys()


def test_nothing_is_overwritten_without_force(run_alone: Run, tmp_path: Path) -> None:
    run_alone("certs", str(tmp_path), "--client", "bob")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in ((), ("--client", "bob"), ("--host", "other.example"), ("--client", "carol", "--client", "bob")):
        assert b"--force" in run_alone("certs", str(tmp_path), *arguments, fails=2).stderr
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run_alone("certs", str(tmp_path), "--client", "bob", "--force")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == after.keys()
    assert before["ca.key"] != after["ca.key"]
    assert before["bob.pem"] != after["bob.pem"]
    assert 0o600 == stat.S_IMODE((tmp_path / "server.pem").stat().st_mode)


def test_half_an_authority_is_not_replaced_by_another(run_alone: Run, tmp_path: Path) -> None:
    run_alone("certs", str(tmp_path))
    (tmp_path / "ca.key").unlink()
    assert b"restore the other" in run_alone("certs", str(tmp_path), "--client", "bob", fails=2).stderr


def test_names_that_would_be_other_files_are_refused(run_alone: Run, tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", ".hidden", "server", "ca", "client"):
        run_alone("certs", str(tmp_path / "c"), "--client", name, fails=2)
        assert not (tmp_path / "c").exists()


def test_key_stores_have_the_password_of_the_file(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret-Ä\n")
    run_alone("certs", str(tmp_path / "c"), "--pkcs12", "--password-file", str(tmp_path / "password"))
    data = (tmp_path / "c" / "server.p12").read_bytes()
    assert pkcs12.load_key_and_certificates(data, "s3cret-Ä".encode())[0] is not None


def test_password_comes_from_file_or_environment_only(run_alone: Run, tmp_path: Path) -> None:
    refused = run_alone("certs", str(tmp_path / "c"), "--pkcs12", fails=2).stderr
    assert b"BROKER_CERTS_PASSWORD" in refused
    for name, content in (("empty", b"\nsecret"), ("binary", b"\xff\xfe"), ("large", b"secret" * 20_000)):
        (tmp_path / name).write_bytes(content)
        said = run_alone("certs", str(tmp_path / "c"), "--pkcs12", "--password-file", str(tmp_path / name), fails=2)
        assert b"secret" not in said.stderr
    assert not (tmp_path / "c").exists()


def test_a_directory_that_cannot_be_made_is_named(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = run_alone("certs", os.path.join(tmp_path, "file", "below"), fails=1).stderr
    assert b"Not a directory" in said


def test_printed_commands_run_tls_broker_and_client(
    run_alone: Run, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    said = run_alone("certs", str(certs), "--client", "alice").stdout.decode()
    *_, serving, topics = map(shlex.split, said.splitlines())
    assert ["broker", "serve", "--listener", "kafka+ssl://127.0.0.1:9092"] == serving[:4]
    ready = serve("--listener", "kafka+ssl://127.0.0.1:0", *serving[4:]).ready_file
    address = json.loads(ready.read_text())["listeners"]["kafka+ssl"]
    assert ["broker", "topics", "list", "-b", "localhost:9092"] == topics[:5]
    run_alone("topics", "create", "orders", "-b", address, *topics[5:])
    assert b"orders\t1\n" == run_alone("topics", "list", "-b", address, *topics[5:]).stdout
    stranger = run_alone("topics", "list", "-b", address, "--client-config", str(certs / "client.properties"), fails=1)
    assert b"ssl.keystore.location" in stranger.stderr
