"""The server process: it makes the parts, connects them, listens, and ends in order."""
