"""Other ways to keep track of the active agent, each run in an environment of its own."""
