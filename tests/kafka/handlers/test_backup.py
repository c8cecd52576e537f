"""Backup over a socket: rights, refusals, and the release."""

from pathlib import Path

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import backup
from protocol.kafka.messages.backup import Action, BackupResponse
from tests.kafka.handlers.kafka_client import Kafka


def ask(kafka: Kafka, action: Action, backup_id: str = "") -> BackupResponse:
    correlation_id, answer = backup.parse_response(kafka.exchange(backup.request(7, "test", action, backup_id)))
    assert correlation_id == 7
    return answer


def test_single_backup_is_pinned_until_it_is_ended(kafka: Kafka) -> None:
    first = ask(kafka, Action.BEGIN)
    assert first.error == ErrorCode.none
    assert (Path(first.directory) / "plan.json").is_file()
    second = ask(kafka, Action.BEGIN)
    assert (second.error, second.backup_id) == (ErrorCode.invalid_request, "")
    assert "Another backup is being made" in second.message
    assert ask(kafka, Action.RENEW, first.backup_id).error == ErrorCode.none
    assert ask(kafka, Action.END, first.backup_id).error == ErrorCode.none
    assert not Path(first.directory).exists()
    for action in (Action.RENEW, Action.END):
        assert "not pinned any more" in ask(kafka, action, first.backup_id).message


def test_backup_is_advertised_as_a_feature_only(kafka: Kafka) -> None:
    answer = kafka.ask(ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    assert backup.FEATURE in {feature.name for feature in answer.supported_features}
    assert ApiKey.BACKUP not in {key.api_key for key in answer.api_keys}
