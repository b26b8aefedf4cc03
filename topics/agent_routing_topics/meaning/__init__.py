"""The detector that compares by meaning as well as by words. Needs NumPy."""
