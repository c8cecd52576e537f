"""The metrics that clients push (KIP-714): who is subscribed to what, what they have pushed, and its series for Prometheus."""
