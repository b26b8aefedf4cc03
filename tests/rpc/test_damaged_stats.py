"""Statistics that are damaged: what is still served, and the command that counts them again."""

import json
import sqlite3
from contextlib import closing, suppress

import grpc
import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.stored_forms import (
    DIRECTORY,
    HEAD,
    StatsDamaged,
    day_name,
    hour_name,
)
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import OWN_SETTING_PREFIX
from tests.rpc.live_service import START_US, ask, hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.test_auto_off import page
from tests.stored_data.command_line import command

HOUR_US = 3_600_000_000
HOUR = START_US // HOUR_US
FIGURES = hour_name(HOUR, "")
COUNTED = ("user_messages", "supervisor_calls_saved", "sessions", "refusals_total")


def edit(tmp_path, statement, *values):
    """Change the stored data by hand; return how many rows changed."""
    with closing(sqlite3.connect(tmp_path / "routing.db", isolation_level=None)) as file:
        return file.execute(statement, values).rowcount


def damage(tmp_path, name, tenant):
    """Change one byte in the middle of a setting."""
    with closing(sqlite3.connect(tmp_path / "routing.db", isolation_level=None)) as file:
        row = (tenant, name)
        where = "WHERE tenant = ? AND name = ?"
        ((value,),) = file.execute(f"SELECT value FROM settings {where}", row).fetchall()
        middle = len(value) // 2
        hurt = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
        file.execute(f"UPDATE settings SET value = ? {where}", (hurt, *row))


async def stats_of(service, tenant=""):
    """Call GetRoutingStats."""
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    return await admin.GetRoutingStats(pb.GetRoutingStatsRequest(tenant=tenant), timeout=30)


def figures(stats):
    """Return all figures of an answer."""
    shown = pb.GetRoutingStatsResponse()
    shown.CopyFrom(stats)
    for field in ("as_of_time", "end_time"):
        shown.ClearField(field)
    return shown


async def talk(service):
    """Hold conversations with messages, handoffs and a refusal."""
    for name in ("one", "two"):
        chat = service.chat(name)
        routed = await chat.say("hello")
        await chat.answer(routed.dispatch, "over to sales", **hand_to("sales"))
        assert (await refusal(chat.set_active("disabled"))).reason == "HANDOFF_REFUSED"
    sales = await service.chat("three").with_agent("sales")
    routed = await sales.say("more")
    await sales.answer(routed.dispatch, "how many?", **ask())


async def counted(tmp_path):
    """Talk to a server, and return its figures once it has stopped."""
    async with serving(tmp_path, DESK) as service:
        await talk(service)
        before = await stats_of(service)
    assert before.user_messages >= 4
    assert before.refusals_total == 2
    return figures(before)


async def recount(tmp_path, *options):
    """Run the command; return its exit code and output."""
    url = f"sqlite:///{tmp_path / 'routing.db'}"
    code, out, err = await command("stats", "--recount", "--store", url, *options)
    return code, out + err


@pytest.mark.parametrize(
    ("tenant", "name"),
    [
        ("default", FIGURES),
        ("default", DIRECTORY),
        ("*", FIGURES),
        ("*", day_name(HOUR // 24, "")),
        ("*", HEAD),
    ],
)
async def test_damaged_statistics_are_named_with_the_remedy_and_counted_again(
    tmp_path, tenant, name
):
    """They stopped the counting for all, with no way to begin again."""
    before = await counted(tmp_path)
    damage(tmp_path, name, tenant)
    async with serving(tmp_path, DESK) as service:
        routed = await service.chat("one").say("routing goes on")
        assert routed.revision == 3
        if "/d/" not in name:
            refused = await refusal(stats_of(service, "*" if tenant == "*" else ""))
            assert tuple(refused) == ("DATA_LOSS", "STATE_CORRUPT")
            assert name in refused.message
            assert "agent-routing stats --recount" in refused.message
        if name != HEAD:
            other = await stats_of(service, "" if tenant == "*" else "*")
            assert other.user_messages == before.user_messages + 1
        failures = {type(failure) for failure in service.observer.failures}
        assert failures <= {StatsDamaged}
        service.observer.failures.clear()
        code, out = await recount(tmp_path)
        assert code == 0
        assert f'damaged: tenant {tenant}, setting "{name}"' in out
        assert "1 damaged\nnothing was changed" in out
        code, out, _ = await command("verify", "--store", f"sqlite:///{tmp_path / 'routing.db'}")
        assert code == 1
        assert f'setting "{name}" does not fit its checksum; agent-routing stats --recount' in out
    code, out = await recount(tmp_path, "--yes", "--json")
    assert code == 0
    said = json.loads(out.splitlines()[0])
    assert said["damaged"] == [{"tenant": tenant, "setting": name}]
    assert said["recount"] is True
    async with serving(tmp_path, DESK) as service:
        for asked in ("", "*"):
            stats = await stats_of(service, asked)
            assert stats.user_messages == before.user_messages + 1
            assert stats.refusals_total == before.refusals_total
            assert stats.sessions == before.sessions
            assert stats.handoffs == before.handoffs
    code, out = await recount(tmp_path)
    assert ", 0 damaged" in out


@pytest.mark.parametrize("name", [HEAD, day_name(HOUR // 24, "")])
async def test_damage_is_a_metric_until_all_is_counted_again(tmp_path, name):
    """Counting stood still and only one line of the log said so."""
    await counted(tmp_path)
    damage(tmp_path, name, "*")
    gauge = "agent_routing_statistics_damaged"
    async with serving(tmp_path, DESK, metrics_listen="127.0.0.1:0") as service:
        await service.chat("one").say("routing goes on")
        with suppress(grpc.aio.AioRpcError):
            await stats_of(service, "*")
        assert f"{gauge} 1" in await page(service)
        service.observer.failures.clear()
    code, _ = await recount(tmp_path, "--yes")
    assert code == 0
    async with serving(tmp_path, DESK, metrics_listen="127.0.0.1:0") as service:
        await stats_of(service, "*")
        assert f"{gauge} 0" in await page(service)


async def test_recount_by_another_process_ends_the_damage_that_this_one_met():
    """Otherwise the alert would last until the restart of every replica."""
    store = MemoryStore()
    one, other = (
        StatsKeeper(store, lambda: "front", lambda: START_US, holder=name) for name in "ab"
    )
    await store.put_setting("*", HEAD, b"\0damaged")
    for _ in range(2):
        with pytest.raises(StatsDamaged):
            await one.advance()
        assert one.damaged == 1
    await other.begin_recount()
    assert await one.advance() is False
    assert one.damaged == 0


async def test_recount_of_whole_statistics_gives_the_same_figures(tmp_path):
    """Twice in a row too, and with messages after it."""
    before = await counted(tmp_path)
    for _ in range(2):
        code, out = await recount(tmp_path, "--yes")
        assert code == 0, out
        assert "the recount has begun" in out
    async with serving(tmp_path, DESK) as service:
        assert figures(await stats_of(service)) == before
        await service.chat("one").say("more")
        assert (await stats_of(service)).user_messages == before.user_messages + 1


async def test_recount_that_ended_half_way_is_finished_by_the_next_server(tmp_path):
    """A crash after the head was written and before all was cleared."""
    before = await counted(tmp_path)
    code, out = await recount(tmp_path, "--yes")
    assert code == 0, out
    cleared = edit(tmp_path, "DELETE FROM settings WHERE name = ?", FIGURES)
    assert cleared == 2
    async with serving(tmp_path, DESK) as service:
        assert figures(await stats_of(service)) == before


async def test_statistics_of_the_release_before_have_no_checksum_and_are_counted_on(tmp_path):
    """The checksum stands after the compressed value; without it the value is the old one."""
    before = await counted(tmp_path)
    pattern = f"{OWN_SETTING_PREFIX}analytics/%"
    with_crc = 'AND instr(value, CAST(\',"crc":"\' AS BLOB)) = length(value) - 17'
    cut = "UPDATE settings SET value = substr(value, 1, length(value) - 18) WHERE name LIKE ? "
    with closing(sqlite3.connect(tmp_path / "routing.db")) as file:
        stored = file.execute("SELECT count(*) FROM settings WHERE name LIKE ?", (pattern,))
        settings = stored.fetchone()[0]
    assert edit(tmp_path, cut + with_crc, pattern) == settings
    async with serving(tmp_path, DESK) as service:
        assert figures(await stats_of(service)) == before
        await service.chat("one").say("more")
        assert (await stats_of(service)).user_messages == before.user_messages + 1


async def test_recount_of_a_store_that_is_missing_or_unnamed_changes_nothing(tmp_path):
    """It makes no file."""
    code, out = await recount(tmp_path, "--yes")
    assert code == 1
    assert not (tmp_path / "routing.db").exists()
    code, out, err = await command("stats", "--recount", "--store", "")
    assert code == 2
    assert "--store URL" in out + err
    code, out, err = await command("stats", "--yes")
    assert code == 2


TABLES = ("changes", "sessions", "tasks", "audit", "settings")


@pytest.mark.parametrize("settings_too", [True, False])
async def test_counting_goes_on_after_a_failover_that_lost_changes(
    tmp_path, postgres_database, settings_too
):
    """PostgreSQL, set back to a copy under a running server, as by an asynchronous standby.

    With the settings the figures are those of the copy; without them (a partial restore) the
    cursor is ahead of the log: what was counted stays, and what comes is counted.
    """
    url = postgres_database.store_url(tmp_path)
    schema = postgres_database.schema(tmp_path)
    positions = [f"{schema}.{table}_position_seq" for table in ("changes", "audit")]
    try:
        async with serving(tmp_path, DESK, store=url) as service:
            await talk(service)
            kept = await stats_of(service)
            postgres_database.execute(
                *(f"CREATE TABLE {schema}.{t}_copy AS TABLE {schema}.{t}" for t in TABLES)
            )
            ends = [
                postgres_database.execute(f"SELECT last_value FROM {name}")[0][0]
                for name in positions
            ]
            service.clock.advance(1)
            lost = service.chat("lost")
            for text in ("this", "is", "lost"):
                await lost.say(text)
            assert (await refusal(lost.set_active("disabled"))).reason == "HANDOFF_REFUSED"
            seen = await stats_of(service)
            assert seen.user_messages == kept.user_messages + 3
            back = [table for table in TABLES if settings_too or table != "settings"]
            postgres_database.execute(
                "BEGIN;"
                + "".join(
                    f"DELETE FROM {schema}.{t}; INSERT INTO {schema}.{t} OVERRIDING SYSTEM VALUE "
                    f"SELECT * FROM {schema}.{t}_copy;"
                    for t in back
                )
                + "".join(
                    f"SELECT setval('{name}', {end});"
                    for name, end in zip(positions, ends, strict=True)
                )
                + "COMMIT;"
            )
            expected = kept if settings_too else seen
            assert figures(await stats_of(service)) == figures(expected)
            service.clock.advance(1)
            after = service.chat("after")
            await after.say("hello")
            await after.say("again")
            assert (await refusal(after.set_active("disabled"))).reason == "HANDOFF_REFUSED"
            now = await stats_of(service)
            assert now.user_messages == expected.user_messages + 2
            assert now.refusals_total == expected.refusals_total + 1
            assert now.sessions == expected.sessions + 1
            assert service.observer.failures == []
    finally:
        postgres_database.drop(tmp_path)
