"""The two sides of a shuffle connection: receivers and writers, with their credit."""
