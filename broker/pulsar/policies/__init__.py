"""The policies of namespaces and topics (limits, rates, retention), and the thread that enforces those that depend on time."""
