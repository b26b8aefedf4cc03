"""Recorded dialogues, played through a real server to see what its routing would have done.

Its rule: it calls the server over gRPC as any client does, and counts figures from the server's own
answers.
"""
