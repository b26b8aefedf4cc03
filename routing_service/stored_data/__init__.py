"""Whole stores: verified against their own changes, and copied to other stores.

It works on stores that are in use, with memory that does not grow with them.
"""
