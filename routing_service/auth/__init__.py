"""Sign-in and rights: who calls, and what a caller may do.

Rule: the caller learns only that a credential was not accepted; the log has the reason, one word.
"""
