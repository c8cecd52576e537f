"""Settings as the Kafka admin APIs read and change them: of topics, of groups, of this broker."""
