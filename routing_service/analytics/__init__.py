"""How routing does: figures folded from the log, never in an append."""
