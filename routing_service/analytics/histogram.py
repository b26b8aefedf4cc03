"""Counts of sizes in log-linear buckets: small, mergeable, with a bounded error.

Sizes below 16 have a bucket each; above, every power of two has 16 of equal width, so a bucket's
middle is within 1/32 of every size in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SIZE_MAX: Final = 2**36
"""Larger sizes count as this: in ticks of 0.1 ms, 79 days."""

ERROR: Final = 1 / 32
"""How far a quantile may be from the size at its rank, as a share of that size."""

_BITS: Final = 4
_EXACT: Final = 1 << _BITS

Histogram = dict[int, int]
"""How many sizes fell into each bucket, by its number."""


def bucket_of(size: int) -> int:
    """Return the number of a size's bucket. size: 0 or more; less counts as 0."""
    size = min(max(size, 0), SIZE_MAX)
    if size < _EXACT:
        return size
    shift = size.bit_length() - 1 - _BITS
    return (shift << _BITS) + (size >> shift)


def middle_of(bucket: int) -> float:
    """Return the size that a bucket stands for."""
    if bucket < _EXACT:
        return float(bucket)
    shift = (bucket >> _BITS) - 1
    low = (bucket - (shift << _BITS)) << shift
    return low + ((1 << shift) - 1) / 2


def quantile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the size that a share of all sizes does not exceed; None without sizes.

    It is within ERROR of the size at the rank ceil(share * count). share: above 0, at most 1.
    """
    count = sum(histogram.values())
    if not count:
        return None
    rank = max(1, -int(-share * count // 1))
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return middle_of(bucket)
    raise AssertionError("the ranks end with the last bucket")
