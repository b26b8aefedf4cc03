"""Topic detection says for which agent a message is, and how sure it is.

What follows from a verdict is decided in core.
"""
