"""The registry of agents: read from its file, checked, and reloaded while the server runs."""
