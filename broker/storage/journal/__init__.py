"""Durability by shipping: what files grow by goes to a journal, and the local disk is a cache."""
