"""One topic partition as a log: append, read, look up by time, make durable, trim."""
