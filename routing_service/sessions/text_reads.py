"""Records in the audit that an operator has read the texts of a conversation, and why."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from routing_service.sessions.audit_log import AuditLog, Operator

SAME_READ_US: Final = 300 * 1_000_000
"""A read that is repeated within this time adds no record: a page that follows a conversation reads
it again with each change."""

READS_MAX: Final = 1_000
"""Reads that are remembered. One that is forgotten earlier is recorded once more."""


class TextReads:
    """The reads of one process."""

    def __init__(self, audit: AuditLog) -> None:
        """Record reads in an audit."""
        self._audit = audit
        self._recorded: OrderedDict[tuple[str, ...], int] = OrderedDict()

    async def note(
        self,
        operator: Operator,
        tenant: str,
        session_id: str,
        method: str,
        reason: str,
        *,
        target: str = "",
    ) -> None:
        """Record a read before its answer is sent. session_id: "" = of the whole tenant.

        target: what is read, as the record says it; "" = that session, or all of them.

        The same read by the same operator within SAME_READ_US is in the audit already.
        Raises StoreError.
        """
        read = (tenant, session_id, method, operator.subject, reason, target)
        now_us = self._audit.now_us()
        recorded_us = self._recorded.get(read)
        if recorded_us is not None and now_us - recorded_us < SAME_READ_US:
            return
        if not target:
            target = f'texts of session "{session_id}"' if session_id else "texts of all sessions"
        await self._audit.act(operator, tenant, method, reason=reason, target=target)
        self._recorded[read] = now_us
        self._recorded.move_to_end(read)
        if len(self._recorded) > READS_MAX:
            self._recorded.popitem(last=False)
