"""DeleteGroups over the wire, in every version."""

import pytest

from broker.kafka.handlers.delete_groups import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import commit, leave, new_group, stable
from tests.kafka.handlers.kafka_client import Kafka, versions


@pytest.mark.parametrize("version", versions(API))
def test_empty_groups_are_gone_when_answered(kafka: Kafka, version: int) -> None:
    left, offsets_only, busy, nowhere, topic = new_group(), new_group(), new_group(), new_group(), kafka.topic()
    leave(kafka, left, stable(kafka, left))
    stable(kafka, busy)
    for group in (left, offsets_only):
        commit(kafka, group, topic, 7)
    answer = kafka.ask(ApiKey.DELETE_GROUPS, version, groups_names=[left, busy, nowhere, offsets_only, left])
    assert [(result.group_id, result.error_code) for result in answer.results] == [
        (left, ErrorCode.none),
        (busy, ErrorCode.non_empty_group),
        (nowhere, ErrorCode.group_id_not_found),
        (offsets_only, ErrorCode.none),
    ]
    catalogue = kafka.inside.catalogue
    kept = {group for group, _ in catalogue.load_groups()} | {row.group for row in catalogue.load_offsets()}
    assert kept & {left, offsets_only, busy} == {busy}
