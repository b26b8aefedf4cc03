"""The pure core: sessions, agents and decisions, without clock, I/O or wire format."""
