"""All messages that have no code of their own, read and written by the schemas that kio generates from Kafka's."""
