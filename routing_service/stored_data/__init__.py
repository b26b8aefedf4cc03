"""What a store holds as a whole: checked against itself, and copied to another store.

It works on stores that are in use, with memory that does not grow with them.
"""
