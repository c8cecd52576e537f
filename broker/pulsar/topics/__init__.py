"""The topics that Pulsar's clients use: what Pulsar knows of each beyond its logs, and who is connected to it."""
