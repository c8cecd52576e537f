"""All messages without handwritten code, read and written by the schemas that kio generates from Kafka's."""
