"""What happens when a data directory is opened: directories are checked, logs are read, damage is put right."""
