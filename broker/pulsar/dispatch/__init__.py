"""Dispatchers, which choose the consumer of each entry of a subscription. Pure; a file for each dispatcher."""
