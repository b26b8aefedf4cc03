"""How SQL copies a session of a SQLite store under other names, to make a large store quickly.

A copy's values keep no checksum, since that is made with the session's id; a server accepts values
without one, as an older release wrote them, and gives them one as they change.
"""

from __future__ import annotations

from typing import Final

from routing_service.storage.checksums import FIELD_BYTES


def _without_checksum(column: str) -> str:
    """Return the SQL of a state's or a change's value without its checksum."""
    plain = f"substr({column}, 1, length({column}) - {FIELD_BYTES})"
    field = f"substr({column}, -{FIELD_BYTES}, 8)"
    return (
        f'CASE WHEN {field} IS NOT CAST(\',"crc":"\' AS BLOB) THEN {column} '
        f"WHEN substr({column}, 1, 1) = CAST('{{' AS BLOB) THEN CAST({plain} || '}}' AS BLOB) "
        f"ELSE {plain} END"
    )


COPIED: Final = {
    "sessions": {
        "session_no": "session_no + n",
        "session_id": "'copy-' || n",
        "state": _without_checksum("state"),
    },
    "changes": {
        "position": "NULL",
        "session_no": "session_no + n",
        "events": _without_checksum("events"),
    },
    "tasks": {
        "session_no": "session_no + n",
        "task_id": "printf('%08x', n) || substr(task_id, 9)",
        # A task's checksum is the white space after its JSON.
        "data": "CAST(rtrim(CAST(data AS TEXT), ' ' || char(9, 10, 13)) AS BLOB)",
    },
}
"""By table: the columns of copy n that differ from the first session's, with their SQL."""
