"""Subscriptions: their cursors, and the adapter between their dispatchers and consumers."""
