"""The columns in Spark's types and in Arrow's."""

import itertools

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from broker.client.kafka.columns import columns
from broker.errors import ConfigError
from broker.spark.source.batch_source import columns_of, spark_schema
from broker.spark.source.options import ALL_COLUMNS
from tests.loops import loop_over


@loop_over("names", [*itertools.permutations(ALL_COLUMNS, 2), ALL_COLUMNS])
def test_task_yields_the_schema_that_spark_expects(names: tuple[str, ...]) -> None:
    assert to_arrow_schema(spark_schema(names), timezone="UTC").equals(columns.schema(names))


def test_user_schema_may_leave_out_columns() -> None:
    assert ("offset", "key") == columns_of(spark_schema(("offset", "key")))


@pytest.mark.parametrize(
    ("field", "called"),
    [
        (StructField("price", IntegerType()), "no column price int:"),
        (StructField("offset", IntegerType()), "no column offset int:"),
        (StructField("partition", IntegerType(), nullable=False), "no column partition int not null:"),
    ],
)
def test_unknown_column_is_reported_with_the_known(field: StructField, called: str) -> None:
    with pytest.raises(ConfigError, match=called):
        columns_of(StructType([field]))
