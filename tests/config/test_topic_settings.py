"""The table of the topics' settings, and that everything which stands for one of its rows agrees with it."""

import attrs

from broker.config import BrokerConfig, setting_infos, topic_settings
from broker.config.setting import INT_MAX, Setting
from broker.config.topic_settings import BY_NAME, SETTINGS
from broker.storage.log.log_config import COMPRESSION_CODECS, LogConfig


def test_rows_are_unique_and_named_after_their_settings() -> None:
    rows = {name: row for name, row in vars(topic_settings).items() if isinstance(row, Setting)}
    assert {row.field.upper() for row in SETTINGS} == rows.keys()
    assert all(rows[row.field.upper()] is row for row in SETTINGS)
    assert list(BY_NAME.values()) == list(SETTINGS)
    assert list(BY_NAME) == sorted(BY_NAME)


def test_topic_fields_have_defaults_of_their_rows() -> None:
    of_broker = {"is_shipped": False}  # no setting of a topic
    fields = {f.name: f.default for f in attrs.fields(LogConfig)}
    assert {row.field: row.default for row in SETTINGS} | of_broker == fields


def test_broker_defaults_are_those_of_their_rows() -> None:
    infos = {info.kafka: info for info in setting_infos(BrokerConfig)}
    for row in SETTINGS:
        if row.kafka is not None:
            info = infos[row.kafka]
            assert info.name == row.kafka.replace(".", "_")
            assert row.parse(str(info.default).lower() if row.kind == "boolean" else str(info.default)) == row.default
            assert info.most == (INT_MAX if row.kind == "int" and row.most is None else row.most)


def test_broker_offers_every_choice_of_a_topic() -> None:
    infos = {info.kafka: info for info in setting_infos(BrokerConfig)}
    for row in SETTINGS:
        if row.choices:
            offered = {word for choice in infos[row.kafka].choices for word in choice.split(",")}
            assert offered == set(row.choices)


def test_every_codec_of_a_topic_is_known() -> None:
    assert set(topic_settings.COMPRESSION_TYPE.choices) - {"producer"} <= COMPRESSION_CODECS.keys()


def test_broker_bounds_are_within_topic_bounds() -> None:
    broker = {info.name: info for info in setting_infos(BrokerConfig)}
    for setting in SETTINGS:
        if setting.kafka is not None and setting.least is not None:
            least = broker[setting.kafka.replace(".", "_")].least
            assert least is not None, setting.kafka
            assert least >= setting.least, setting.kafka
