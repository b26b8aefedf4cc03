"""The Redis engine: one primary, compare-and-append in Lua."""
