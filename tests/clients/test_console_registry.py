"""The console's page of the registry: a candidate is compared, replayed and put in force.

In a real browser against a real server, with a file of its own that it replaces.
"""

import asyncio
import re

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.examples import EXAMPLES
from routing_service.rpc.admin.replay_sources import ReplaySources
from tests.clients.console_driver import browse, browsing, met
from tests.clients.test_console_operations import SECRET, talked
from tests.clients.test_console_operators import enter, time_us
from tests.engines.redis_server import free_port
from tests.rpc.registries import DESK
from tests.rpc.signed_in import bearer, serving_signed_in, token

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

VIEW = "?view=registry"
RIGHTS = ("admin", "platform")

TAX = re.sub(r"examples_file: .*\n", "", EXAMPLES["tax"].registry_path.read_text(encoding="utf-8"))

# The first has no VAT specialist, whom two sessions have; the second calls itself otherwise alone.
WITHOUT_VAT = (
    re.sub(r"  - id: vat\n.*?(?=  - id: invoices\n)", "", TAX, flags=re.DOTALL)
    .replace("version: 1\n", "version: without-vat\n")
    .replace("handoff_to: [vat, income_tax]", "handoff_to: [income_tax, invoices]")
)
OF_KIM = TAX.replace("version: 1\n", "version: of-kim\n")

# Its VAT specialist does not keep the user.
SUPERVISED = TAX.replace("version: 1\n", "version: supervised\n").replace(
    "  - id: vat\n", "  - id: vat\n    sticks: never\n"
)

CONVERSATIONS = 40
LATER_MESSAGES = 3

WRONG = WITHOUT_VAT.replace("[income_tax, invoices]", "[income_tax, invoice]")
WRONG_LINE = WRONG[: WRONG.index("[income_tax, invoice]")].count("\n") + 1


def write(folder, **texts):
    """Write registry files; return their paths by name."""
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(text, encoding="utf-8")
    return paths


def upload(path, ready=".trial"):
    """Return the steps that choose a candidate, which is compared at once."""
    return [["upload", "input[name=candidate]", str(path)], ["wait", ready], ["text", ready]]


def take(reason):
    """Return the steps that put the candidate in force."""
    return [
        ["fill", "input[name=take-reason]", reason],
        ["click", "button[name=take]:enabled"],
    ]


async def acts_of(live):
    """Return who has done what, and why."""
    stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
    page = await stub.ListEvents(
        pb.ListEventsRequest(kinds=["operator_act"]), metadata=bearer(token("admin"))
    )
    return [
        (each.actor, each.event.operator_act.method, each.event.operator_act.reason)
        for each in page.records
    ]


async def test_a_candidate_is_compared_and_put_in_force(modules, tmp_path):
    """Mistakes have lines, a trial says what changes, and the second of two operators is told."""
    paths = write(tmp_path, wrong=WRONG, sams=WITHOUT_VAT, kims=OF_KIM)
    async with serving_signed_in(
        tmp_path, TAX, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        await talked(live, "chat-vat", "u-17")
        await talked(live, "chat-more", "u-18")
        url = f"{live.server.console_url}/{VIEW}"
        steps = [
            *enter("sam", url, ".in-force", *RIGHTS),
            ["text", ".in-force"],
            ["text", "tr[data-agent=filing]"],
            ["text", "tr[data-agent=coordinator]"],
            *upload(paths["wrong"], ".mistakes li"),
            ["count", "button[name=take]"],
            ["click", "button[name=line]"],
            ["selected"],
            *upload(paths["sams"]),
            ["count", ".mistakes"],
            ["axe"],
            ["whole", "console-candidate"],
            *enter("kim", url, ".in-force", *RIGHTS),
            *upload(paths["kims"]),
            # kim is faster: sam's call comes when her registry is in force.
            ["as", "sam"],
            ["hold", "ReloadAgents"],
            *take("no more VAT"),
            ["as", "kim"],
            *take("another name"),
            ["wait", ".done"],
            ["text", ".done"],
            ["wait", '.in-force[data-version^="of-kim"]'],
            ["count", ".other"],
            ["as", "sam"],
            ["release", "ReloadAgents"],
            ["wait", ".overtaken"],
            ["text", ".overtaken"],
            ["wait", ".other"],
            ["text", ".other"],
            ["wait", '.trial:has-text("of-kim")'],
            ["scheme", "dark"],
            ["axe"],
            ["whole", "console-candidate-dark"],
            ["size", 390, 800],
            ["select", "header select", "es"],
            ["wait", 'h1:has-text("Registro")'],
            ["text", ".trial"],
            ["wide"],
            ["axe"],
            ["whole", "console-candidate-phone"],
            ["select", "header select", "pt"],
            ["wait", 'button[name=take]:has-text("Pôr em vigor")'],
            *take("no more VAT"),
            ["wait", ".done"],
            ["text", ".done"],
            ["count", ".other"],
            # The text stays while another page is shown.
            ["click", 'nav a[href="/"]'],
            ["wait", "form.filters"],
            ["back"],
            ["wait", ".in-force"],
            ["value", "textarea[name=text]"],
            # kim's page was not touched.
            ["as", "kim"],
            ["wait", ".other"],
            ["text", ".other"],
            ["count", "tr[data-agent=vat]"],
        ]
        seen = await browse(modules, tmp_path, steps)
        acts = await acts_of(live)
    check_compared(iter(seen["results"]))
    assert seen["mistakes"] == []
    assert (tmp_path / "agents.yaml").read_text(encoding="utf-8") == WITHOUT_VAT
    kept = [path.read_text(encoding="utf-8") for path in tmp_path.glob("agents.yaml.*.previous")]
    assert sorted(kept) == sorted([TAX, OF_KIM])
    assert acts == [
        ("kim", "ReloadAgents", "another name"),
        ("sam", "ReloadAgents", "no more VAT"),
    ]


def check_compared(results):
    """Check what the two pages showed."""
    assert "In force: 1" in next(results)[0]
    filing = next(results)[0]
    assert "filing specialist" in filing
    assert "income_tax, vat" in filing
    coordinator = next(results)[0]
    assert "supervisor, home agent" in coordinator
    assert "all that take handoffs" in coordinator
    mistake = next(results)[0]
    assert f"Line {WRONG_LINE} " in mistake
    assert '"invoice"' in mistake
    assert next(results) == 0
    assert next(results) == "    handoff_to: [income_tax, invoice]"
    trial = next(results)[0]
    assert "removed agents: vat" in trial
    assert "changed agents: filing" in trial
    assert "vat: live sessions with it 2" in trial
    assert "filing: income_tax, vat → income_tax, invoices" in trial
    assert next(results) == 0
    assert next(results) == []
    assert "Nothing would change" in next(results)[0]
    done = next(results)[0]
    assert "in force" in done
    assert ".previous" in done
    assert next(results) == 0
    assert "perhaps by another operator" in next(results)[0]
    assert "of-kim" in next(results)[0]
    assert next(results) == []
    assert "agentes eliminados: vat" in next(results)[0]
    assert [next(results) for _ in range(2)] == [0, []]
    assert "em vigor" in next(results)[0]
    assert next(results) == 0
    assert next(results) == WITHOUT_VAT
    told = next(results)[0]
    assert "of-kim" in told
    assert "without-vat" in told
    assert next(results) == 0


async def test_a_file_that_the_server_cannot_replace_is_not_taken(modules, tmp_path):
    """The page says why instead of a button, and sends no file that is too large or not UTF-8."""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "agents.yaml").symlink_to(tmp_path / "mounted" / "agents.yaml")
    # Agents without a description, which could be suggested to users.
    vague = DESK + "topics: {mode: suggest}\n"
    paths = write(
        tmp_path,
        vague=vague.replace("desk-1", "desk-2"),
        # Too large for the port of users, not for the console.
        long=f"{WITHOUT_VAT}# {'-' * 600 * 1024}\n",
        large=f"{WITHOUT_VAT}# {'-' * 1024 * 1024}\n",
    )
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(TAX.encode("latin-1"))
    async with serving_signed_in(
        tmp_path, vague, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        steps = [
            *enter("sam", f"{live.server.console_url}/{VIEW}", ".in-force", *RIGHTS),
            ["text", ".warnings summary"],
            ["text", ".warnings li:first-child"],
            *upload(paths["vague"], ".candidate .warnings summary"),
            ["wait", ".read-only"],
            ["text", ".read-only"],
            ["count", "button[name=take]"],
            *upload(paths["large"], ".candidate .problem"),
            *upload(latin, ".candidate .problem:has-text('UTF-8')"),
            ["value", "textarea[name=text]"],
            *upload(paths["long"], ".trial:has-text('without-vat')"),
        ]
        seen = await browse(modules, tmp_path, steps)
    results = iter(seen["results"])
    warnings = next(results)[0]
    assert re.fullmatch("Warnings about its file: [1-9][0-9]*", warnings)
    assert re.match("Line [0-9]+: .*description", next(results)[0])
    assert next(results)[0] == warnings.replace("its file", "the candidate")
    assert "it is a link" in next(results)[0]
    assert next(results) == 0
    assert "more than 1 MiB" in next(results)[0]
    assert "not UTF-8" in next(results)[0]
    assert next(results) == vague.replace("desk-1", "desk-2")
    assert "desk-1 → without-vat" in next(results)[0]
    assert seen["mistakes"] == []


async def talk_on(live, session_id):
    """Hold a conversation in which the VAT specialist keeps the user for some messages."""
    await talked(live, session_id, "u-17")
    for _ in range(LATER_MESSAGES):
        routed = await live.stub.Route(
            rpb.RouteRequest(session_id=session_id, text=SECRET, channel="web"),
            metadata=bearer(token("route", user="u-17")),
        )
        answer = rpb.CompleteTurnRequest(
            session_id=session_id, request_id=routed.request_id, agent_id="vat", text="And?"
        )
        answer.follow_up.SetInParent()
        await live.stub.CompleteTurn(answer, metadata=bearer(token("agent", agents=("*",))))


def start(reason):
    """Return the steps that start a replay."""
    return [
        ["fill", "input[name=replay-reason]", reason],
        ["click", "button[name=start]:enabled"],
        ["wait", ".progress"],
    ]


def slow_after(monkeypatch, count):
    """Let the replays after so many take as one of a week: a second for each conversation."""
    started = []
    choose, read = ReplaySources.choose, ReplaySources.read

    async def choose_noted(self, *given):
        started.append(given)
        return await choose(self, *given)

    async def read_slowly(self, *given):
        if len(started) > count:
            await asyncio.sleep(1)
        return await read(self, *given)

    monkeypatch.setattr(ReplaySources, "choose", choose_noted)
    monkeypatch.setattr(ReplaySources, "read", read_slowly)


async def test_a_candidate_is_replayed_and_then_taken(modules, tmp_path, monkeypatch):
    """Progress survives leaving the page; turns that differ are filtered, read and opened."""
    paths = write(tmp_path, sams=SUPERVISED)
    slow_after(monkeypatch, 1)
    async with serving_signed_in(
        tmp_path, TAX, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        await asyncio.gather(*(talk_on(live, f"chat-{n:03}") for n in range(CONVERSATIONS)))
        url = f"{live.server.console_url}/{VIEW}"
        turn = "tr[data-turn]"
        steps = [
            *enter("sam", url, ".in-force", *RIGHTS, "read_words"),
            ["text", ".replay"],
            *upload(paths["sams"]),
            ["select", "select[name=span]", "24h"],
            *start("ticket 7"),
            ["click", 'nav a[href="/"]'],
            ["wait", "input[name=session]"],
            ["back"],
            ["wait", '.progress[data-state="3"]'],
            # It is compared again, so that it can be taken.
            ["wait", ".trial"],
            ["query"],
            ["text", ".progress"],
            ["size", 1100, 2150],
            ["shot", "console-registry"],
            ["size", 1200, 760],
            ["text", "tr[data-figure=supervisorCallsSaved]"],
            ["count", turn],
            ["click", ".replay button[name=next]"],
            ["wait", ".replay button[name=previous]"],
            ["query"],
            ["text", ".replay nav"],
            ["select", "select[name=to]", "coordinator"],
            ["text", "select[name=effect] option:nth-child(4)"],
            ["select", "select[name=effect]", "MISROUTED_NOW"],
            ["gone", turn],
            ["select", "select[name=effect]", "SUPERVISED_NOW"],
            ["wait", turn],
            ["text", f"{turn}:first-child"],
            ["fill", "input[name=why]", "ticket 8"],
            ["click", "button[name=show]"],
            ["wait", f"{turn}:has-text('{SECRET}')"],
            ["axe"],
            ["size", 390, 800],
            ["scheme", "dark"],
            ["wide"],
            ["axe"],
            ["shot", "console-replay-phone"],
            ["size", 1200, 760],
            ["scheme", "light"],
            ["click", f"{turn}:first-child a"],
            ["wait", ".conversation, section[aria-label=Conversation]"],
            ["query"],
            ["back"],
            ["wait", turn],
            ["query"],
            # Which messages they are needs a right.
            *enter("kim", url, ".progress", "admin"),
            ["text", ".replay p:has-text('read_words')"],
            ["text", "tr[data-figure=supervisorCallsSaved]"],
            ["count", turn],
            ["as", "sam"],
            ["click", "button[name=try]"],
            ["wait", ".trial"],
            *start("once more"),
            ["wait", '.progress[data-state="2"]'],
            ["text", ".progress"],
            # A tenant has one replay at a time, which its other operators see too.
            ["as", "kim"],
            *upload(paths["sams"]),
            *start("mine"),
            ["wait", ".replay .problem:has-text('REPLAY_RUNNING')"],
            ["wait", "button[name=stop]"],
            ["as", "sam"],
            ["click", "button[name=stop]"],
            ["wait", '.progress[data-state="4"]'],
            ["text", ".progress"],
            ["as", "kim"],
            ["wait", '.progress[data-state="4"]'],
            ["as", "sam"],
            *take("calmer"),
            ["wait", ".done"],
            ["text", ".in-force"],
        ]
        seen = await browse(modules, tmp_path, steps)
        acts = await acts_of(live)
    check_replayed(iter(seen["results"]))
    assert seen["mistakes"] == []
    assert acts == [
        ("sam", "StartReplay", "ticket 7"),
        ("sam", "WatchReplay", "ticket 8"),
        ("sam", "StartReplay", "once more"),
        ("sam", "CancelReplay", ""),
        ("sam", "ReloadAgents", "calmer"),
    ]


def check_replayed(results):
    """Check what the page showed of the replay."""
    turns = CONVERSATIONS * LATER_MESSAGES
    assert "Choose a candidate first" in next(results)[0]
    assert "changed agents: vat" in next(results)[0]
    assert next(results) == "?view=registry&span=24h"
    progress = next(results)[0]
    assert "Replay of supervised, compared with 1" in progress
    assert f"finished: {CONVERSATIONS} of {CONVERSATIONS} conversations" in progress
    assert next(results)[0].endswith(f"{turns} 0 -{turns}")
    assert next(results) == 50
    assert next(results) == "?view=registry&span=24h&page=2"
    assert f"page 2 of {-(-turns // 50)}, rows: {turns}" in next(results)[0]
    assert next(results) == [f"now to the supervisor ({turns})"]
    row = next(results)[0]
    assert "now to the supervisor" in row
    assert "text hidden" in row
    assert [next(results) for _ in range(3)] == [[], 0, []]
    assert next(results).startswith("?view=session&id=chat-")
    assert next(results) == "?view=registry&span=24h&to=coordinator&effect=SUPERVISED_NOW"
    assert "operators with the right read_words" in next(results)[0]
    assert next(results)[0].endswith(f"{turns} 0 -{turns}")
    assert next(results) == 0
    assert re.search(f"plays: [0-9]+ of {CONVERSATIONS} conversations", next(results)[0])
    assert "changed agents: vat" in next(results)[0]
    assert "stopped" in next(results)[0]
    assert "supervised" in next(results)[0]


async def test_a_replay_that_its_server_lost_is_said(modules, tmp_path, monkeypatch):
    """The server that answers does not have it, or stops while it plays."""
    slow_after(monkeypatch, 0)
    paths = write(tmp_path, sams=SUPERVISED)
    options = {"console_listen": f"127.0.0.1:{free_port()}", "clock": time_us}
    url = f"http://{options['console_listen']}/{VIEW}"
    steps = [
        ["meet", "served"],
        *enter("sam", url, ".in-force", *RIGHTS),
        *upload(paths["sams"]),
        ["hold", "WatchReplay"],
        ["fill", "input[name=replay-reason]", "ticket 7"],
        ["click", "button[name=start]:enabled"],
        # The field is empty again: the replay has started.
        ["wait", "input[name=replay-reason]:invalid"],
        ["meet", "started"],
        ["release", "WatchReplay"],
        ["wait", ".lost"],
        ["text", ".lost"],
        *start("once more"),
        ["wait", '.progress[data-state="2"]'],
        ["count", ".lost"],
        ["meet", "playing"],
        ["wait", '.progress[data-state="5"]'],
        ["text", ".progress .problem"],
        ["count", "button[name=stop]"],
    ]
    async with browsing(modules, tmp_path, steps) as ended:
        finishing = asyncio.create_task(ended())
        async with serving_signed_in(tmp_path, TAX, **options) as live:
            go_on = await met(tmp_path, "served", finishing)
            await asyncio.gather(*(talk_on(live, f"chat-{n:03}") for n in range(CONVERSATIONS)))
            go_on()
            go_on = await met(tmp_path, "started", finishing)
        async with serving_signed_in(tmp_path, TAX, **options):
            go_on()
            go_on = await met(tmp_path, "playing", finishing)
            go_on()
        seen = await finishing
    results = iter(seen["results"])
    assert "changed agents: vat" in next(results)[0]
    assert "does not have the replay" in next(results)[0]
    assert next(results) == 0
    assert "the server is stopping" in next(results)[0]
    assert next(results) == 0
    assert seen["mistakes"] == []
