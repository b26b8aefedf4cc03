"""Rewriting a store's file: its free space goes, and the last traces of what was deleted.

Nothing that can be read changes; a step that is interrupted leaves the store as it was.

Why: SQLite overwrites what is deleted (secure_delete), but not the copies that it leaves behind
when it moves rows from one page to another. Measured on files of 13 MB: of 166,000 places with
erased texts 2 to 35 were left. Rewriting the file leaves none, at some 100 MB a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from routing_service.storage.open_store import StoreUrlInvalid, open_store, without_secrets


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compacting a store's file."""

    store: str
    before_bytes: int
    after_bytes: int


async def compact_store(url: str) -> Compacted:
    """Rewrite a SQLite store's file; needs as much free disk again, and no server using it.

    Raises StoreUrlInvalid, also for an engine without a store file; StoreError.
    """
    engine = url.partition(":")[0].lower()
    if engine != "sqlite":
        raise StoreUrlInvalid(
            f'the engine "{engine}" has no file to compact; use its own tools '
            "(PostgreSQL: VACUUM FULL)"
        )
    from routing_service.storage.sqlite.store import SqliteStore  # noqa: PLC0415 - when asked for

    store = await open_store(url)
    try:
        assert isinstance(store, SqliteStore), store
        before_bytes, after_bytes = await store.compact()
    finally:
        await store.close()
    return Compacted(without_secrets(url), before_bytes, after_bytes)
