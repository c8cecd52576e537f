"""What Flink leaves to Java: serialized Throwables, modified UTF-8."""
