"""Where in the log a time begins: the fold notes a place for every hour and day that it counts.

So a list of events from a time on does not read the log from its beginning.
"""

from __future__ import annotations

import asyncio
from typing import Final

from routing_service.analytics.session_walk import HOUR_US
from routing_service.analytics.stored_forms import (
    ALL_TENANTS,
    HOURS_PER_DAY,
    Figures,
    StatsDamaged,
    day_name,
    decode,
    hour_name,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.store import CURSOR_START, CursorInvalid, SchemaTooNew

HOURS_BACK_MAX: Final = 24
"""Hours in which the last place before a time is looked for, and then as many days."""


async def log_place_before(store: Store, time_us: int) -> bytes:
    """Return a cursor before every change at a time or later. Raises StoreError.

    It is the place of the last hour that ended an hour before: replicas' clocks may differ by that
    much. CURSOR_START if nothing is noted.
    """
    hour = time_us // HOUR_US - 1
    day = hour // HOURS_PER_DAY
    for names in (
        [hour_name(hour - back, "") for back in range(HOURS_BACK_MAX)],
        [day_name(day - back, "") for back in range(HOURS_BACK_MAX)],
    ):
        values = await asyncio.gather(*(store.get_setting(ALL_TENANTS, name) for name in names))
        for name, value in zip(names, values, strict=True):
            try:
                cursor = decode(Figures, value, name).cursor
            except (StatsDamaged, SchemaTooNew):
                continue  # An earlier place is as good.
            if cursor and await _is_known(store, cursor):
                return cursor
    return CURSOR_START


async def _is_known(store: Store, cursor: bytes) -> bool:
    """Say whether the store can read from a place: a restored copy may not."""
    try:
        await store.read_log(cursor, 1)
    except CursorInvalid:
        return False
    return True
