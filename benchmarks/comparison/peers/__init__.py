"""The contenders' programs, each run in an environment of its own."""
