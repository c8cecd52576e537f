"""Java's own formats, which Flink uses: serialized Throwables and modified UTF-8."""
