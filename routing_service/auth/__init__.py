"""Signing in and rights: who calls, and what they may do.

Owns: credentials, keys and scopes. Must not know: gRPC, protobuf, what an RPC then does.
Rule: whatever is wrong with a credential, its bearer learns only that it was not accepted; the log
has the reason as one word.
"""
