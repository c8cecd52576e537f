"""Tests under faults that are drawn from a seed: what ``@pytest.mark.broker_chaos`` does. See docs/TESTING.md, "Chaos"."""
