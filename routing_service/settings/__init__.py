"""The table of settings, and how their values are read from flags, environment and files."""
