import pytest

from protocol.shuffle.data_type import AS_KNOWN_BY, DATA_TYPES, DataType
from protocol.shuffle.ids import Generation


@pytest.mark.parametrize("generation", list(Generation))
def test_receiver_gets_known_types_and_data_stays_data(generation: Generation) -> None:
    for data_type in DATA_TYPES[1:]:
        sent = AS_KNOWN_BY[generation][data_type]
        assert sent <= generation.last_data_type
        assert data_type.is_buffer == sent.is_buffer
        assert data_type.is_event == sent.is_event


def test_older_generation_gets_plain_end_of_partition_event() -> None:
    assert DataType.EVENT_BUFFER == AS_KNOWN_BY[Generation.V1_16][DataType.END_OF_PARTITION]
    assert DataType.END_OF_PARTITION == AS_KNOWN_BY[Generation.V1_19][DataType.END_OF_PARTITION]
    assert DataType.DATA_BUFFER == AS_KNOWN_BY[Generation.V1_16][DataType.DATA_BUFFER_WITH_CLEAR_END]


def test_the_newest_generation_knows_them_all() -> None:
    assert DATA_TYPES == AS_KNOWN_BY[Generation.V2_0]
