"""Everything durable that is not a record: topics and settings, committed offsets, groups, transactions."""
