"""The producers of a topic: who may produce, what each has sent, and the receipts that it is owed."""
