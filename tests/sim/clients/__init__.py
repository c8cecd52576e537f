"""Simulated clients: small state machines that speak Kafka's protocol and remember the broker's promises."""
