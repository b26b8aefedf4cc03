from contextlib import ExitStack

import pytest

from routing_service.core.errors import Reason, RoutingError
from routing_service.rpc.caller_limits import (
    _OTHER,
    BURST_S,
    STREAM_KINDS,
    CallerLimits,
    StreamKind,
)


class Clock:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    """A clock that a test moves."""
    return Clock()


def passed(limits, caller, calls):
    """Make calls at once. Return how many pass, and the last refusal."""
    through, refused = 0, None
    for _ in range(calls):
        try:
            limits.admit(caller)
        except RoutingError as error:
            refused = error
        else:
            through += 1
    return through, refused


@pytest.mark.parametrize("per_s", [1, 3, 10, 1_000, 1_000_000])
def test_caller_may_send_two_seconds_worth_at_once_and_no_more(clock, per_s):
    """An idle frontend may send a burst."""
    limits = CallerLimits(per_s, clock_s=clock)
    burst = int(per_s * BURST_S)
    through, refused = passed(limits, "ana", min(burst, 3_000) + 5)
    assert through == min(burst, 3_000) + (5 if burst > 3_000 else 0)
    if burst <= 3_000:
        assert refused.reason is Reason.OVERLOADED
        assert refused.metadata == {"limit": "caller_calls_per_s", "value": str(per_s)}
        assert 0 < refused.retry_after_s <= 1 / per_s


@pytest.mark.parametrize("per_s", [1, 7, 250])
def test_caller_who_waits_as_told_is_let_through_at_the_rate(clock, per_s):
    """The refusal's delay is exact: the next call passes after it, and not before."""
    limits = CallerLimits(per_s, clock_s=clock)
    passed(limits, "ana", int(per_s * BURST_S))
    begun_s = clock.now_s
    for _ in range(50):
        _, refused = passed(limits, "ana", 1)
        clock.now_s += refused.retry_after_s * 0.9
        assert passed(limits, "ana", 1)[0] == 0
        clock.now_s += refused.retry_after_s * 0.1 + 1e-6
        assert passed(limits, "ana", 1)[0] == 1
    assert clock.now_s - begun_s == pytest.approx(50 / per_s, rel=0.01)


def test_one_caller_costs_the_others_nothing(clock):
    """Each caller has its own limit."""
    limits = CallerLimits(10, clock_s=clock)
    assert passed(limits, "eve", 1_000)[0] == 20
    assert passed(limits, "ana", 20)[0] == 20


def test_refused_calls_do_not_prolong_the_wait(clock):
    """A caller that keeps trying is served as soon as one that waits."""
    limits = CallerLimits(10, clock_s=clock)
    passed(limits, "ana", 10_000)
    clock.now_s += 0.1001
    assert passed(limits, "ana", 10)[0] == 1


def test_callers_who_owe_nothing_are_forgotten(clock):
    """New callers on each connection must not fill the memory."""
    limits = CallerLimits(10, clock_s=clock, callers_max=100)
    passed(limits, "debtor", 20)
    for number in range(1_000):
        clock.now_s += 0.001
        limits.admit(f"caller-{number}")
    assert len(limits._due_s) <= 101
    # All callers are above their rate: those seen first are forgotten.
    clock.now_s += 1_000
    for number in range(1_000):
        limits.admit(f"caller-{number}")
    assert len(limits._due_s) <= 101


def open_many(limits, count, *where, **options):
    """Open streams that stay open. Return them and the refusal of the one after the last."""
    with ExitStack() as opening:
        refused = None
        for _ in range(count):
            try:
                opening.enter_context(limits.stream(*where, **options))
            except RoutingError as error:
                refused = error
                break
        return opening.pop_all(), refused


def test_calls_are_not_counted_where_they_are_not_limited():
    """By default the limits cost one comparison."""
    limits = CallerLimits()
    assert not limits.limits_calls
    with (
        limits.stream("WatchSession", "t", "t/ana"),
        limits.stream("WatchSession", "t", "t/ana"),
    ):
        pass


def test_streams_are_counted_while_they_are_open():
    """A stream is counted until it ends, also if it ends with an error."""
    limits = CallerLimits(streams_max=2)
    ana, ben = ("WatchSession", "t", "t/ana"), ("WatchInbox", "t", "t/ben")
    with limits.stream(*ana):
        with pytest.raises(KeyError), limits.stream(*ana):
            raise KeyError
        with limits.stream("RouteStream", "t", "t/ana"), limits.stream(*ben):
            with pytest.raises(RoutingError) as caught, limits.stream(*ana):
                pass
            assert caught.value.reason is Reason.OVERLOADED
            assert caught.value.metadata["limit"] == "caller_streams_max"
            assert caught.value.retry_after_s
    assert not limits._streams


@pytest.mark.parametrize("method", [*STREAM_KINDS, "WatchReplay", "ExportUser"])
def test_of_every_kind_of_stream_a_caller_and_a_tenant_have_a_share(method):
    """One token, or three of one tenant, took all of them from every other tenant."""
    limits = CallerLimits()
    bea = ("WatchApprovals", "bank", "bank/bea")
    eve, refused = open_many(limits, 10_000, method, "x", "x/eve")
    most = int(refused.metadata["value"])
    assert (refused.reason, refused.metadata["share"]) == (Reason.OVERLOADED, "caller")
    assert refused.retry_after_s
    assert 50 <= most <= 2_000
    others = [open_many(limits, most, method, "x", f"x/eve-{n}")[0] for n in range(3)]
    _, refused = open_many(limits, 2, method, "x", "x/mallory")
    assert refused.metadata["share"] == "tenant"
    assert refused.metadata["limit"] == limits._kinds.get(method, _OTHER).limit
    with limits.stream(*bea), limits.stream(method, "bank", "bank/bea"):
        pass
    for stack in (eve, *others):
        stack.close()
    assert not limits._streams


def test_a_frontend_that_stands_for_its_users_has_the_share_of_its_tenant():
    """All watches of its users are of one caller."""
    limits = CallerLimits()
    _, refused = open_many(limits, 10_000, "WatchSession", "shop", "shop/web", has_share=False)
    assert refused.metadata == {"limit": "watches", "share": "tenant", "value": "5025"}


def test_the_bound_of_a_server_holds_for_all_tenants_together():
    """It is what bounds the memory."""
    limits = CallerLimits(kinds={"WatchSession": StreamKind("watches", "watches", 8)})
    opened = [
        open_many(limits, 4, "WatchSession", tenant, f"{tenant}/web", has_share=False)[0]
        for tenant in ("a", "b")
    ]
    _, refused = open_many(limits, 1, "WatchSession", "c", "c/web")
    assert refused.metadata == {"limit": "watches", "share": "server", "value": "8"}
    opened[0].close()
    with limits.stream("WatchSession", "c", "c/web"):
        pass
