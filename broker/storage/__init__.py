"""Topics as Kafka segment files, and the catalogue of everything that is not a record."""
