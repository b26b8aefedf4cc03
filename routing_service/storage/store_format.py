"""The store's format number: which stored forms this release may write into it.

Rule: a store keeps its number until an operator raises it, because replicas of an older release may
still be writing there. A store that was empty when a server first opened it has the newest.
"""

from __future__ import annotations

import time
from typing import Final

from routing_service.storage.audit_seals import chained_since, note_chained
from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    OWN_SETTING_PREFIX,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
)

OLDEST_FORMAT: Final = 1
"""What 0.1.0 writes. A store without a number has it."""

NEWEST_FORMAT: Final = 2
"""2: the events of approvals, of turns that take long, of messages that wait and of parked tasks,
and the states with them (STATE_VERSION 2)."""

SERVED_FORMAT: Final = 2
"""The oldest that a server writes into; older forms are still read."""

FORMAT_TENANT: Final = "*"
FORMAT_SETTING: Final = f"{OWN_SETTING_PREFIX}format"

SWAPS_MAX: Final = 8
"""Attempts to write the number: others only ever raise it, so each lost attempt is a step up."""


class FormatRefused(StoreError):
    """The number that was asked for cannot be written. Not retryable."""


async def read_format(store: Store) -> int | None:
    """Return the store's number; None = it has none. Raises StoreCorrupt, StoreUnavailable."""
    data = await store.get_setting(FORMAT_TENANT, FORMAT_SETTING)
    return None if data is None else _number(data)


async def present_format(store: Store) -> int:
    """Return the number that a server would find or give to the store; nothing is written.

    Raises SchemaTooNew for a number of a newer release, and as read_format.
    """
    number = await read_format(store)
    if number is None:
        if not await store.list_tenants("", 1):
            return NEWEST_FORMAT
        # What is there now may be the number itself: another server found the store empty as well.
        number = await read_format(store) or OLDEST_FORMAT
    if number > NEWEST_FORMAT:
        where = "the store's format"
        raise SchemaTooNew(where, number, NEWEST_FORMAT)
    return number


async def settle_format(store: Store) -> int:
    """Return the store's number; an empty store gets the newest.

    Call it before anything else is written. Raises FormatRefused for a number below SERVED_FORMAT,
    and as present_format.
    """
    is_new = await read_format(store) is None and not await store.list_tenants("", 1)
    number = await present_format(store)
    if number < SERVED_FORMAT:
        raise FormatRefused(
            f"the store has format {number}, and this release serves {SERVED_FORMAT} and newer; "
            "once no replica of release 0.1 is left, run "
            f"agent-routing migrate --store URL --format {SERVED_FORMAT}"
        )
    if number == NEWEST_FORMAT:
        await raise_format(store, number)
    if await chained_since(store) is None:
        # Only release 0.1 writes without chains, and a store that it may write to is refused above.
        await note_chained(store, 0 if is_new else time.time_ns() // 1_000)
    return number


async def raise_format(store: Store, number: int) -> int:
    """Write a number and return the one before. Writing the same number again is not an error.

    Raises FormatRefused for a lower number than the store's, or one that this release cannot write.
    """
    if not OLDEST_FORMAT <= number <= NEWEST_FORMAT:
        raise FormatRefused(
            f"this release knows the formats {OLDEST_FORMAT} to {NEWEST_FORMAT}, not {number}"
        )
    for _ in range(SWAPS_MAX):
        data = await store.get_setting(FORMAT_TENANT, FORMAT_SETTING)
        before = OLDEST_FORMAT if data is None else _number(data)
        if number < before:
            raise FormatRefused(
                f"the store has format {before}, which cannot be lowered to {number}: what is "
                "written already stays; to go back, restore a backup made before it was raised"
            )
        if data is not None and number == before:
            return before
        if await store.swap_setting(FORMAT_TENANT, FORMAT_SETTING, data, b"%d" % number):
            return before
    raise FormatRefused("others keep writing the store's format; try again")


def _number(data: bytes) -> int:
    try:
        number = int(data)
    except ValueError:
        number = 0
    if number < OLDEST_FORMAT:
        message = f'the setting "{FORMAT_SETTING}" is not a format number; restore it from a backup'
        raise StoreCorrupt(message)
    return number
