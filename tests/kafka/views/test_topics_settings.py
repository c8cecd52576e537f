"""Settings over HTTP."""

import json

from tests.http.api.harness import api_broker, differences, documented


def test_changed_settings_are_marked_and_secrets_hidden() -> None:
    with api_broker(num_partitions=7, pulsar_token_secret_key="c2VjcmV0" * 8) as api:
        answer = api.get("/settings")
        settings = {each["name"]: each for each in answer["settings"]}
        assert ("7", "1", "static") == tuple(settings["num.partitions"][key] for key in ("value", "default", "source"))
        assert ("default", True) == (settings["log.retention.ms"]["source"], settings["log.retention.ms"]["live"])
        # All of them, also those that Kafka's clients do not see.
        assert "kafka://127.0.0.1:0,http://127.0.0.1:0" == settings["listeners"]["value"]
        assert "kafka://127.0.0.1:9092" == settings["listeners"]["default"]
        secret = settings["pulsar_token_secret_key"]
        assert (True, None, "static") == (secret["secret"], secret["value"], secret["source"])
        assert "c2VjcmV0" not in json.dumps(answer)
        (example,) = documented("/api/v1/settings")["settings"]
        assert [] == differences(example, settings["num.partitions"])
