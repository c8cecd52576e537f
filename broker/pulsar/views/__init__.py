"""What the HTTP API shows of Pulsar's subscriptions."""
