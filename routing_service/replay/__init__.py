"""Recorded dialogues, played through a real server to see what its routing would have done.

Owns the form of recorded dialogues, the playing of one, and the figures of all. It must not know
the service from within: it talks to it over gRPC as any client does. Its rule: a figure is counted
from the server's own answers, never from what they should have been.
"""
