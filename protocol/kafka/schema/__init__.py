"""All other messages, by the schemas that kio generates from Kafka's."""
