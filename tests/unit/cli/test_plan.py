"""``agent-routing plan``, and the simulation that its costs are checked with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import fleet
from benchmarks.simulation import Costs, Layout, Traffic, simulate
from routing_service.cli.app import app
from routing_service.cli.failure import CommandFailed
from routing_service.cli.plan_figures import ENGINES, Demand, costs, plan

ROOT = Path(__file__).parents[3]
QUICK = Costs(service_s=0.0004, engine_s=0.0001, sync_s=0.001)


def run(capsys, *arguments):
    """Run the command and return what it prints."""
    app(["plan", *arguments], prog_name="agent-routing", standalone_mode=False)
    return capsys.readouterr().out


def test_every_engine_is_planned_with_what_ends_first(capsys):
    """An operator sees which engine carries the users, and where it ends."""
    out = run(capsys, "--users", "10M")
    assert out.startswith("10,000,000 users a day, 20 messages each: 2,300 turns a second, 12,000")
    for engine in ENGINES:
        assert f"\n\n{engine}" in out
    assert out.count("ends first") == len(ENGINES)
    assert "sqlite: does not fit" in out
    assert "\npostgres\n" in out
    assert costs()["measured"]["date"] in out


def test_json_has_the_demand_and_every_limit(capsys):
    """For programs; the shares say how far each limit is."""
    answer = json.loads(run(capsys, "--users", "250k", "--engine", "postgres", "--json"))
    assert answer["demand"]["users"] == 250_000
    assert answer["turns_per_s"] == pytest.approx(250_000 * 20 / 86_400)
    (made,) = answer["plans"]
    shares = [limit["share"] for limit in made["limits"]]
    assert shares == sorted(shares, reverse=True)
    assert made["stores"] == 1
    assert made["fits"]


def test_needs_grow_with_what_users_do():
    """Ten times the users, the messages or the peak need more; each limit is in its own unit."""
    for engine in ENGINES:
        base = plan(engine, Demand(users=1e6))
        more = plan(engine, Demand(users=1e7))
        assert more.stored_gb_per_day == pytest.approx(10 * base.stored_gb_per_day)
        assert more.users_max == pytest.approx(base.users_max)
        assert plan(engine, Demand(users=1e6, inbox_share=1)).processes >= base.processes
        assert plan(engine, Demand(users=1e6, peak=50)).users_max <= base.users_max
        # At the number of users that it is said to carry, the first limit is just reached.
        full = plan(engine, Demand(users=base.users_max))
        assert full.limits[0].share == pytest.approx(1)
    assert plan("postgres", Demand(users=1e8)).stores > plan("postgres", Demand(users=1e7)).stores
    assert plan("sqlite", Demand(users=100)).machines == 1
    assert plan("postgres", Demand(users=100)).machines == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--users", "many"],
            '--users is "many"; write a number from 1 to 10B, such as 5000, 250k or 10M (k, M',
        ),
        (["--users", "0"], '--users is "0"'),
        (["--users", "11B"], "from 1 to 10B"),
        (["--users", "1M", "--engine", "mysql"], 'is "mysql"; use all, sqlite, postgres, redis'),
        (["--users", "1M", "--inbox-share", "1.1"], "--inbox-share is 1.1; it must be from 0 to 1"),
        (["--users", "1M", "--peak", "0.5"], "--peak is 0.5; it must be from 1 to 1000"),
        (["--users", "1M", "--messages", "nan"], "--messages is nan"),
        (["--users", "1M", "--cores", "0"], "--cores is 0; it must be from 1 to 1024"),
    ],
)
def test_wrong_options_are_named_with_what_they_may_be(capsys, arguments, message):
    """Exit code 2, and nothing is planned."""
    with pytest.raises(CommandFailed) as caught:
        run(capsys, *arguments)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_simulation_gives_the_same_again():
    """A result can be looked into only if it can be had again."""
    traffic = Traffic(turns_per_s=300, inbox_share=0.2, hot_share=0.1)
    first, again, other = (
        simulate(QUICK, Layout(2, 2, engine_cores=2), traffic, seconds=1, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first.turns_per_s == pytest.approx(300, rel=0.2)
    assert first.failed_turns == 0


def test_simulation_keeps_to_its_processors():
    """A process has one core, processes share the machine's, and other programs take theirs."""
    bound = 1 / (2 * QUICK.service_s)
    busy = Traffic(callers=32)
    one = simulate(QUICK, Layout(1, 4, engine_cores=4), busy, seconds=1).turns_per_s
    four = simulate(QUICK, Layout(4, 4, engine_cores=4), busy, seconds=1).turns_per_s
    shared = simulate(QUICK, Layout(4, 1, engine_cores=4), busy, seconds=1).turns_per_s
    others = simulate(QUICK, Layout(1, 1, 4, others=0.6), busy, seconds=1).turns_per_s
    assert 0.9 * bound < one <= 1.01 * bound
    assert 2 * bound < four <= 4.01 * bound
    assert shared <= 1.01 * bound
    assert 0.3 * bound < others < 0.5 * bound


def test_simulated_failover_ends_with_every_turn_answered():
    """Callers wait while the engine is away, and the wait is over soon after it is back."""
    traffic = Traffic(turns_per_s=200, away_at_s=0.5, away_s=1.5)
    played = simulate(QUICK, Layout(2, 2, engine_cores=2), traffic, seconds=4)
    assert played.failed_turns == 0
    assert 1_000 < played.quantile_ms(0.999) < 2_500
    assert played.ended_late_s < 1


def test_one_session_is_slower_than_many():
    """Its changes follow each other: each waits for the disk alone."""
    layout = Layout(2, 2, engine_cores=2)
    many = simulate(QUICK, layout, Traffic(callers=32), seconds=1).turns_per_s
    hot = simulate(QUICK, layout, Traffic(callers=32, hot_share=1), seconds=1).turns_per_s
    assert hot < 0.5 * many


def test_clusters_have_tenants_of_different_sizes():
    """No turn is lost, each cluster has some, and the more clusters the less equal they are."""
    few, many = (fleet.rates(clusters, 12_000) for clusters in (5, 47))
    for rates, clusters in ((few, 5), (many, 47)):
        assert len(rates) == clusters
        assert sum(rates) == pytest.approx(12_000)
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] > 0
    assert few[0] < 1.2 * 12_000 / 5
    assert many[0] > 1.5 * 12_000 / 47


@pytest.mark.long
def test_peak_of_many_users_names_what_happens_to_whom():
    """What is disturbed on the busiest cluster alone is a smaller share of all calls."""
    rows = fleet.peaks(3e6, Costs(service_s=0.0006, engine_s=0.0002, sync_s=0.001))
    plain, _inbox, hot, away = rows
    assert [each["what"] for each in rows] == [*fleet.EVERYWHERE, *fleet.ON_THE_BUSIEST]
    assert {each["clusters"] for each in rows} == {plan("postgres", Demand(users=3e6)).stores}
    assert plain["long_percent"] == 0
    assert hot["busiest_p99_ms"] >= plain["busiest_p99_ms"]
    assert away["busiest_p99_ms"] > 1_000
    assert 0 < away["long_percent"] < 50
    assert {each["failed_turns"] for each in rows} == {0}


def test_division_of_tenants_is_planned_as_uneven(capsys):
    """An operator who divides tenants learns that the fullest database has more than its share."""
    assert "tenants differ in size" in run(capsys, "--users", "10M", "--engine", "postgres")
    assert "tenants differ" not in run(capsys, "--users", "1M", "--engine", "postgres")


def test_page_has_the_tables_of_the_measured_costs():
    """After new costs the page is written again: the script has --write for it."""
    checked = subprocess.run(
        [sys.executable, "scripts/make_scaling.py"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
