"""Records of Kafka's format as messages of Pulsar's, and the other way round."""
