"""The columns that a query sees, with the names and types of Spark's Kafka connector.

These are Spark's types; ``broker.client.kafka.columns.columns`` has the same columns in Arrow's.
"""

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.errors import ConfigError

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user has given, which may lack some. Raises ConfigError for any other column or type."""
    for field in schema.fields:
        if TYPES.get(field.name) != field.dataType or not field.nullable:
            known = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in TYPES.items())
            raise ConfigError(
                f"A topic has no column {field.name} {field.dataType.simpleString()}"
                f"{'' if field.nullable else ' not null'}: it has {known}."
            )
    return tuple(schema.names)
