"""Is this message for another agent? The question, the verdict, and what answers it.

Owns: the interface and its models. Must not know: sessions' rules, thresholds, stores, clocks.
Rule: a detector says how sure it is; what follows from that is decided elsewhere.
"""
