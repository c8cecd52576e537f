"""Simulated clients: small state machines that speak Kafka's protocol and remember what they were promised."""
