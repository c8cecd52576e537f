"""Schemas of topics: their versions, and the rules of compatibility between them."""
