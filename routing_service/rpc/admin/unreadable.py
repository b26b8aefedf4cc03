"""The entry that stands in lists, streams and exports for what cannot be read."""

from __future__ import annotations

import structlog

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.core.errors import Reason
from routing_service.storage.store import SchemaTooNew, SessionKey, StoreCorrupt

_log = structlog.get_logger(__name__)

UnreadableError = StoreCorrupt | SchemaTooNew


def unreadable(key: SessionKey, revision: int, error: UnreadableError) -> pb.Unreadable:
    """Return the entry for a row, and log why it cannot be read. revision: 0 = it has none."""
    _log.error(
        "row_unreadable",
        tenant=key.tenant,
        session_id=key.session_id,
        revision=revision,
        error=str(error),
    )
    is_newer = isinstance(error, SchemaTooNew)
    return pb.Unreadable(
        tenant=key.tenant,
        session_id=key.session_id,
        revision=revision,
        reason=(Reason.SCHEMA_TOO_NEW if is_newer else Reason.STATE_CORRUPT).value,
    )
