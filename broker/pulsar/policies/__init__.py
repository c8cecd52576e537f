"""What namespaces and topics are allowed to do and how long they keep things, and the thread that sees to it."""
