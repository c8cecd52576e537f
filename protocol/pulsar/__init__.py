"""Pulsar's binary protocol: frames, commands and the metadata of messages."""
