"""The screen that `serve` ends its start with."""

from broker.cli.serve import Address, command_name, screen


def test_addresses_the_next_command_and_how_to_stop() -> None:
    addresses = [
        Address("http", "127.0.0.1:8080"),
        Address("kafka", "127.0.0.1:9092"),
        Address("shuffle", "[::1]:9310"),
    ]
    assert """
reactor-broker 1.2 is running
  Kafka    127.0.0.1:9092
  shuffle  [::1]:9310
  HTTP     http://127.0.0.1:8080/
  topics   /data
  next     in another terminal:
             echo hello | .venv/bin/broker produce greetings
             .venv/bin/broker consume greetings
  stop     Ctrl-C
""" == screen("1.2", addresses, "/data", ".venv/bin/broker")


def test_another_port_is_in_the_command() -> None:
    assert "produce greetings -b 127.0.0.1:1\n" in screen("1", [Address("kafka", "127.0.0.1:1")], "d", "broker")
    assert "produce greetings -b 10.0.0.1:9092\n" in screen("1", [Address("kafka", "10.0.0.1:9092")], "d", "broker")


def test_welcome_names_tls_and_logins() -> None:
    shown = screen("1", [Address("kafka", "a:1", True, True), Address("pulsar", "b:2", True)], "d", "broker")
    assert "a:1 (with TLS and a login)" in shown
    assert "b:2 (with TLS)" in shown
    assert "produce" not in shown
    assert "https://a:1/" in screen("1", [Address("http", "a:1", True)], "d", "broker")


def test_program_is_named_as_it_is_called() -> None:
    def programs(*names: str) -> "type[bool]":
        return names.__contains__  # type: ignore[return-value]

    assert "broker" == command_name("/v/bin/broker", "/bin:/v/bin", programs("/v/bin/broker"))
    assert "/v/bin/broker" == command_name("/v/bin/broker", "/bin:/v/bin", programs("/bin/broker", "/v/bin/broker"))
    assert ".venv/bin/broker" == command_name(".venv/bin/broker", "/bin::", programs())
    assert "python -m broker" == command_name("/x/broker/__main__.py", "/bin", programs())
