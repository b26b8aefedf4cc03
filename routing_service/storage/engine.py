"""The Engine protocol: what one database has to do for ``Store`` to be a Store on it.

An engine is never called after ``close``, and never with a value that ``write_checks`` refuses, a
limit out of bounds or a cursor of another list. ``store.Store`` says what each method promises.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from routing_service.storage.page_cursor import CursorForm, Places
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.relay import Relay
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_figures import WriteFigures


class Span(NamedTuple):
    """Which changes of a session to read: after < revision < before, both from 0 to INT_MAX."""

    after: int
    before: int
    limit: int
    newest_first: bool


class ChangeHints(Protocol):
    """Hints that other processes have committed something."""

    @property
    def is_live(self) -> bool:
        """Whether hints arrive now."""
        ...

    async def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until more than ``seen`` hints have arrived, or for timeout_s; return how many."""
        ...


class Engine(Protocol):
    """One database. Any method may raise StoreUnavailable, StoreCorrupt and StoreClosed."""

    @property
    def shared_writers(self) -> bool:
        """See Store.shared_writers."""
        ...

    @property
    def write_figures(self) -> WriteFigures | None:
        """See Store.write_figures."""
        ...

    @property
    def hints(self) -> ChangeHints | None:
        """Hints of what other processes commit; None = this engine has none."""
        ...

    @property
    def relay(self) -> Relay | None:
        """See Store.relay."""
        ...

    @property
    def log_form(self) -> CursorForm:
        """The form of the log's cursors."""
        ...

    def audit_form(self, tenant: str) -> CursorForm:
        """Return the form of the cursors of a tenant's audit entries."""
        ...

    async def append(self, append: Append) -> None:
        """See Store.append."""
        ...

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        ...

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        ...

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        ...

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request. request_id is not empty."""
        ...

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        ...

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        ...

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        ...

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        ...

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """Read entries after the places, and the places after them. Raises CursorInvalid."""
        ...

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """Read the sessions whose ids come after one, by code point; "" = from the first."""
        ...

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        ...

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        ...

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """Read the log after the places, and the places after it. Raises CursorInvalid."""
        ...

    async def log_end(self) -> Places:
        """Return places that every change appended from now on comes after."""
        ...

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        ...

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        ...

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        ...

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        ...

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        ...

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        ...

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        ...

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        ...

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        ...

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        ...

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before."""
        ...

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        ...

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        ...

    async def close(self) -> None:
        """Finish the writes that were accepted and release everything. Called once."""
        ...
