"""Who a client is, what it may do, and how much it may take. Every service asks; nothing here knows a protocol or a socket."""
