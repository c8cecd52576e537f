"""Settings as Kafka's admin APIs read and change them: of topics, of groups, of this broker."""
