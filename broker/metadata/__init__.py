"""The catalogue: everything durable that is not a record, behind one interface, and the thread that writes to it in batches."""
