"""Benchmarks: ratios against a reference in the same run, never a time alone."""
