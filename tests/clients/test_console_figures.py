"""The console's pages of figures: overview, handoffs, topics and audit. One server for all of them.

In a real browser against a real server, as test_console_page.py.
"""

import json
import time

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.parts import Counts
from tests.clients.console_driver import browse
from tests.rpc.live_service import ask, hand_to, refusal, serving
from tests.scripted_topics import ScriptedModel

pytestmark = pytest.mark.timeout(600)

SECRET = "my bank details"
REGISTRY = """
api_version: agent_routing/v1
version: desk-7
supervisor: front
default_locale: en
topics: {mode: suggest, threshold: 0.5}
agents:
  - {id: front, name: Front desk, description: First., color: "#3a3f47"}
  - {id: sales, name: Sales, description: What we sell., color: "#0b57b0"}
  - {id: support, name: Support, description: Help., color: "#2e7d32"}
  - {id: billing, name: Billing, description: Bills., color: "#f9a825"}
  - {id: premium, name: Premium, description: For a few., requires: ["plan:premium"]}
"""
HOUR_US = 3_600_000_000


class MovingClock:
    """The real time, less what a test sets: the statistics get several hours."""

    def __init__(self):
        self.back_us = 0

    def __call__(self):
        return time.time_ns() // 1_000 - self.back_us


async def conversations(live, clock):
    """Handoffs, refusals, stuck users and answered offers, in two hours."""
    for hours in (3, 0):
        clock.back_us = hours * HOUR_US
        for number in range(6):
            chat = await live.chat(f"chat-{hours}-{number}").with_agent("sales", **ask())
            routed = await chat.say("and my order?")
            target = "support" if number % 2 else "billing"
            handed = await chat.answer(routed.dispatch, **hand_to(target, reason=SECRET))
            await chat.answer(handed.next, "Your order?", **ask())
        await chat.say("/supervisor")
        refused = await live.chat(f"chat-{hours}-no").with_agent("sales", **ask())
        routed = await refused.say("something for a few")
        await refusal(refused.answer(routed.dispatch, **hand_to("premium", reason=SECRET)))
    for number in range(12):
        said = f"#support={0.6 if number < 6 else 0.9} it is broken"
        chat = await live.chat(f"offer-{number}").with_agent("sales")
        offered = await chat.say(said)
        accepts = number >= 6 or number == 0
        choice = offered.suggestion.options[0 if accepts else 1].id
        await chat.say("x", quick_reply_id=choice)


async def test_a_handoff_back_is_seen_in_the_graph(modules, tmp_path):
    """Its edge passes behind no agent and stays in the picture, on a screen and on a phone."""
    async with serving(
        tmp_path, REGISTRY, console_listen="127.0.0.1:0", clock=MovingClock()
    ) as live:
        chat = await live.chat("chat-1").with_agent("sales")
        for agent_id in ("support", "sales", "billing", "support", "sales"):
            routed = await chat.say("and now?")
            handed = await chat.answer(routed.dispatch, **hand_to(agent_id))
            await chat.answer(handed.next, "Yes.")
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", f"{live.server.console_url}/?view=handoffs"],
                ["wait", ".svelte-flow__edge-label"],
                ["count", ".svelte-flow__edge"],
                ["hidden_edges"],
                ["edge", "support", "sales"],
                ["wait", '[data-read="handoffs support sales"]'],
                ["size", 390, 800],
                ["back"],
                ["wait", ".svelte-flow__edge-label"],
                ["hidden_edges"],
            ],
        )
    assert seen["mistakes"] == []
    assert seen["results"] == [5, [], []]


async def test_pages_of_figures_show_what_happened(modules, tmp_path):
    """Each figure opens the page behind it; a graph, a matrix, a trend, a diagram and a proof."""
    clock = MovingClock()
    counts = Counts()
    async with serving(
        tmp_path,
        REGISTRY,
        console_listen="127.0.0.1:0",
        clock=clock,
        model=ScriptedModel(),
        counts=counts,
    ) as live:
        await conversations(live, clock)
        admin = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        off = pb.SetStickinessRequest(enabled=False, agent_ids=["billing"], reason=SECRET)
        await admin.SetStickiness(off)
        url = live.server.console_url
        for name, page in (
            ("overview", overview(url)),
            ("handoffs", handoffs(url)),
            ("topics", topics(url)),
            ("audit", audit(url)),
        ):
            seen = await browse(modules, tmp_path, [*page.steps, *looks(name, page.title_es)])
            *results, axe, wide, axe_phone = seen["results"]
            assert seen["mistakes"] == [], name
            assert seen["origins"] == [url], name
            assert [axe, wide, axe_phone] == [[], 0, []], name
            assert SECRET not in json.dumps(results), name
            page.check(*results)


def looks(name, title_es):
    """The steps that every page takes at its end: light, dark on a phone, in other languages."""
    return [
        ["axe"],
        ["shot" if name == "audit" else "whole", f"console-{name}"],
        ["scheme", "dark"],
        ["size", 390, 800],
        ["select", "header select", "es"],
        ["wait", f'h1:has-text("{title_es}")'],
        ["wide"],
        ["axe"],
        ["whole", f"console-{name}-phone"],
        ["select", "header select", "pt"],
        ["wait", 'nav a:has-text("Transferências")'],
    ]


class Page:
    """Steps on a page, and what they must show."""

    def __init__(self, title_es, steps, check):
        self.title_es = title_es
        self.steps = steps
        self.check = check


def overview(url):
    """The figures, each a link; the server that answered; a refresh that comes by itself."""

    def check(saved, refusals, switches, server, query):
        assert saved == ["55.9% supervisor calls saved 33 / 59 messages"]
        assert refusals[0].startswith("2 ")
        assert switches[0].startswith("off for 1 agent")
        assert "sqlite, accepts calls" in server[0]
        assert "desk-7" in server[0]
        assert query == "?view=audit&what=refusals&since=24h"

    return Page(
        "Resumen",
        [
            ["open", f"{url}/?view=overview"],
            ["wait", '.live[data-live="live"]'],
            # Two answers of the server: then it has a rate.
            ["wait", 'tr[data-server] td[data-label="Messages a second"]:not(:has-text("…"))'],
            ["wait", '[data-figure="approvals"]:has-text("0 approvals")'],
            ["text", '[data-figure="saved"]'],
            ["text", '[data-figure="refusals"]'],
            ["text", '[data-figure="switches"]'],
            ["text", "tr[data-server]"],
            ["click", '[data-figure="refusals"]'],
            ["wait", 'tr[data-record="handoffRefused"]'],
            ["query"],
            ["back"],
            ["wait", "canvas"],
        ],
        check,
    )


def handoffs(url):
    """The graph and the matrix have the same numbers; an edge opens its sessions."""

    def check(*results):
        totals, edges, cells, agent, found, sessions, versions = results
        assert any(row.startswith("handoffs ") for row in totals)
        assert edges == len(cells)
        assert sorted(cells) == ["0 ✕ 2", "13", "26", "6"]
        assert agent[0].startswith("S Support") or "Support" in agent[0]
        # Handed over by the agent, and by users who accepted the offer.
        moved = {f"chat-{hours}-{number}" for hours in (0, 3) for number in (1, 3, 5)}
        moved |= {f"offer-{number}" for number in (0, *range(6, 12))}
        assert found[0].startswith("13 records")
        assert set(sessions) == moved
        assert any("desk-7" in option for option in versions)

    return Page(
        "Traspasos",
        [
            ["open", f"{url}/?view=handoffs"],
            ["wait", ".svelte-flow__node"],
            ["text", ".totals tbody tr"],
            ["count", ".svelte-flow__edge"],
            ["text", ".matrix a"],
            ["text", 'tr[data-agent="support"]'],
            # The pointer on the graph and the keyboard on the matrix open the same.
            ["edge", "sales", "support"],
            ["wait", '[data-read="handoffs sales support"]'],
            ["wait", 'tr[data-record="agentHandoff"]'],
            ["back"],
            ["wait", ".matrix"],
            ["focus", '[data-edge="sales support"]'],
            ["press", "Enter"],
            ["wait", 'tr[data-record="agentHandoff"]'],
            ["text", ".quiet[data-read]"],
            ["text", 'tr[data-record="agentHandoff"] td a'],
            ["back"],
            ["wait", ".matrix"],
            ["select", "select[name=with]", "before"],
            ["wait", '[data-read="24h before"]'],
            ["wait", 'th:has-text("Change")'],
            ["text", "select[name=span] option"],
            ["select", "select[name=span]", "registry:desk-7"],
            ["wait", '[data-read="registry:desk-7 before"]'],
            ["wait", "canvas"],
            ["wait", ".svelte-flow__node"],
        ],
        check,
    )


def topics(url):
    """The share accepted by confidence, the pair that is weak, and what a higher bound would do."""

    def check(*results):
        unsure, sure, weak, pair, before, after, saved = results
        assert "6 1 5 0 17%" in unsure[0]
        assert "6 6 0 0 100%" in sure[0]
        assert weak == []
        assert pair[0].split()[-5:] == ["12", "7", "5", "0", "0"]
        assert before == ["12 offers: 7 accepted, 5 declined. 0 of the accepted would be missing."]
        assert after == ["6 offers: 6 accepted, 0 declined. 1 of the accepted would be missing."]
        assert json.loads(saved)["byPair"][0]["offered"] == 12

    return Page(
        "Temas",
        [
            ["open", f"{url}/?view=topics"],
            ["wait", "circle"],
            ["text", 'tr[data-confidence="60%"]'],
            ["text", 'tr[data-confidence="90%"]'],
            ["text", "[data-weak]"],
            ["text", 'tr[data-pair="sales support"]'],
            ["text", ".follows"],
            ["slide", "input[name=bound]", "0.8"],
            ["text", ".follows"],
            ["download", "button[name=export]"],
        ],
        check,
    )


def audit(url):
    """Acts and who did them, the proof of the chain, and a file of what is listed."""
    noted = f"9:{'0' * 64}"

    def check(acts, proof, lacks, saved):
        assert "stickiness switched" in acts[0]
        assert "The audit is whole." in proof[0]
        assert "seal 9, hash 00" in lacks[0]
        assert "is expected and missing" in lacks[0]
        [line] = saved.splitlines()
        assert json.loads(line)["event"]["stickinessSwitched"]["agentIds"] == ["billing"]

    return Page(
        "Auditoría",
        [
            ["open", f"{url}/?view=audit"],
            ["wait", "tr[data-record]"],
            ["text", "tr[data-record]"],
            ["click", "button[name=verify]"],
            ["wait", ".proof .done"],
            ["text", ".proof"],
            ["fill", "input[name=expected]", noted],
            ["click", "button[name=verify]"],
            ["wait", ".proof li.problem"],
            ["text", ".proof"],
            ["download", "button[name=export]"],
            ["select", "select[name=what]", "handoffs"],
            ["click", "button[type=submit]"],
            ["wait", 'tr[data-record="handoffRefused"]'],
        ],
        check,
    )
