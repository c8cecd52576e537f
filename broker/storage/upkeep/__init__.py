"""What is done to logs in the background: fsync, retention, compaction, scrub, and closing them."""
