"""The two sides of a shuffle connection: receivers with their credit, and writers with theirs."""
