"""Opening a data directory: directories are checked, logs are read, damage is repaired."""
