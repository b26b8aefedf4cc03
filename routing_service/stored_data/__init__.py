"""What a store holds as a whole: checked against itself, and moved to another store.

Owns going through everything that is stored. It must not know engines, commands or what a caller
may do. Its rule: it works on stores that are in use, with memory that does not grow with them.
"""
