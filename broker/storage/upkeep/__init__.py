"""Background work on logs: fsync, retention, compaction, scrub, and closing them."""
