"""The table of docs/retention.md of what an erasure leaves, compared with the store's bytes."""

import re
import secrets
import sqlite3
from pathlib import Path

from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import handoff_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.core.erased_owner import SALT_BYTES, is_owner, owner_hash
from routing_service.sessions.audit_log import NO_SESSION, is_about
from routing_service.storage.sqlite.compact import compact_store
from tests.rpc.live_service import hand_to
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, token

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"
HASH_BYTES = 32
TRACE = secrets.token_hex(16)


def documented():
    """Return the table: what is said of each kind of data."""
    rows = {}
    is_table = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "of an erased session":
            is_table = True
        elif is_table and not line.startswith("|"):
            break
        elif is_table and not cells[0].startswith("---"):
            rows[cells[0]] = cells[1]
    return rows


def new(name):
    """Return a text that is nowhere else."""
    return f"{name}{secrets.token_hex(8)}"


class Said:
    """Texts that are nowhere else, each in one kind of data."""

    def __init__(self):
        self.user, self.text, self.metadata = new("user"), new("text"), new("metadata")
        self.plan, self.channel = new("plan"), new("channel")
        self.agents_reason, self.reason = new("agent"), new("operator")
        self.session, self.front, self.operator = new("session"), new("web"), new("sam")
        self.answer = new("answer")


async def converse(service, said):
    """Have one conversation with all of it; return the request ids."""
    traced = ("traceparent", f"00-{TRACE}-{secrets.token_hex(8)}-01")
    web = Signed(service, *bearer(token("route", "act_as", subject=said.front), traced))
    runtime = Signed(service, *bearer(token("agent", subject="runtime", agents=("front",))))
    routed = await web(
        "Route",
        rpb.RouteRequest(
            session_id=said.session,
            user_id=said.user,
            text=said.text,
            metadata={"order": said.metadata},
            entitlements=[said.plan],
            channel=said.channel,
        ),
    )
    request = rpb.CompleteTurnRequest(
        session_id=said.session,
        request_id=routed.dispatch.request_id,
        agent_id="front",
        text=said.answer,
    )
    request.handoff.CopyFrom(hand_to("sales", reason=said.agents_reason)["handoff"])
    await runtime("CompleteTurn", request)
    sam = Signed(service, *bearer(token("admin", subject=said.operator)))
    by_hand = rpb.SetActiveAgentRequest(
        session_id=said.session,
        agent_id="support",
        reason=said.reason,
        initiator=handoff_pb2.INITIATOR_OPERATOR,
    )
    await sam("SetActiveAgent", by_hand)
    return sam, routed.dispatch.request_id


def values(folder):
    """Return every value in every table, as SQLite reads them, and those outside the settings."""
    settings, found = [], []
    with sqlite3.connect(folder / "routing.db") as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            for row in connection.execute(f"SELECT * FROM {table}"):
                read = settings if table == "settings" else found
                read += [each if isinstance(each, bytes) else str(each).encode() for each in row]
    connection.close()
    return b"\n".join([*settings, *found]), b"\n".join(found)


def kept_in(stored, said, request_id):
    """Say of each row of the table whether such data is in a store's bytes."""
    data, outside_settings = stored

    def has(*texts):
        return any(text.encode() in data for text in texts)

    pseudonyms = set(re.findall(rb"[0-9a-f]{64}", data))
    return {
        "the user's id": has(said.user),
        "texts, items and metadata": has(said.text, said.metadata),
        "entitlements": has(said.plan),
        # The statistics are in the settings.
        "the channel's name": said.channel.encode() in outside_settings,
        "reasons that agents and users gave": has(said.agents_reason),
        "stored answers": has(said.answer),
        "the session's id": has(said.session),
        "request ids, methods and times": has(request_id) and has("CompleteTurn"),
        "agents' ids and routing reasons": has('"sales"') and has('"agent_handoff"'),
        "callers that are not the user": has(said.front) and has(said.operator),
        "operators' reasons": has(said.reason) and has("request 17"),
        "trace ids": has(TRACE),
        "the pseudonym of the owner": any(
            is_owner(each.decode(), said.session, said.user) for each in pseudonyms
        ),
        "the pseudonym in operators' acts": any(
            is_about(f"user {each.decode()}", said.user) for each in pseudonyms
        ),
        "hashes of the audit's chain": b'"prev":"' in data,
    }


async def test_table_of_what_is_left_is_true_of_the_store_s_bytes(tmp_path):
    """Row by row: after the erasure, and after a purge. No row is without a check."""
    said, said_of = Said(), documented()
    async with serving_signed_in(tmp_path, DESK) as service:
        sam, request_id = await converse(service, said)
        before = kept_in(values(tmp_path), said, request_id)
        assert set(before) == set(said_of)
        # What an erasure makes is not there before it. All else is: the search finds it.
        made = {"the pseudonym of the owner", "the pseudonym in operators' acts"}
        assert {name for name, there in before.items() if not there} <= {
            *made,
            "operators' reasons",
        }
        await sam("EraseUser", pb.EraseUserRequest(user_id=said.user, reason="request 17"))
        erased = kept_in(values(tmp_path), said, request_id)
        service.clock.advance(24 * 3600)
        when = timestamp_pb2.Timestamp()
        when.FromMicroseconds(service.clock.now_us)
        purge = pb.PurgeSessionsRequest(update_time_before=when, reason="too old")
        assert (await sam("PurgeSessions", purge)).sessions_purged == 1
        purged = kept_in(values(tmp_path), said, request_id)
    for name, told in said_of.items():
        assert told.startswith(("gone", "kept")), name
        assert erased[name] == told.startswith("kept"), (name, told)
        assert purged[name] == (told.startswith("kept") and told != "kept until a purge"), name
    # After the documented step the file's bytes have no more than its tables.
    await compact_store(f"sqlite:///{tmp_path / 'routing.db'}")
    rest = b"".join(file.read_bytes() for file in tmp_path.glob("routing.db*"))
    gone = [name for name, told in said_of.items() if told == "gone"]
    assert not [name for name in gone if kept_in((rest, b""), said, request_id)[name]]


def test_pseudonyms_link_no_two_records():
    """Each has random bytes of its own; without the user's id it tells nothing."""
    salts = [secrets.token_bytes(SALT_BYTES) for _ in range(2)]
    one, two = (owner_hash(salt, NO_SESSION, "ana") for salt in salts)
    assert one != two
    assert is_about(f"user {one}", "ana")
    assert not is_about(f"user {one}", "ben")
