"""The bytes of answers: every language's reader decodes them to the same message."""

from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import ask, finish, hand_to, serving
from tests.rpc.registries import DESK

REQUEST_ID = "0198a6c0-0000-7000-8000-000000000001"
BYTES = 2


def varint(data, place):
    """Read a varint."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def doubled(descriptor, data, path=""):
    """Return the singular fields that occur twice, in a message and everything inside it."""
    found, seen, place = [], set(), 0
    while place < len(data):
        key, place = varint(data, place)
        field = descriptor.fields_by_number[key >> 3]
        here = f"{path}.{field.name}"
        if not field.is_repeated and field.number in seen:
            found.append(here)
        seen.add(field.number)
        size, place = (
            varint(data, place) if key & 7 in (0, BYTES) else ({1: 8, 5: 4}[key & 7], place)
        )
        if key & 7 == BYTES:
            if field.message_type is not None:
                found += doubled(field.message_type, data[place : place + size], here)
            place += size
        elif key & 7:
            place += size
    return found


async def test_no_message_of_an_answer_comes_in_two_parts(tmp_path):
    """Some readers keep only the second part, and lose for example an agent's name."""
    async with serving(tmp_path, DESK) as service:

        async def told(rpc, request):
            answer = getattr(pb, f"{rpc}Response")
            data = await service.raw(rpc, request.SerializeToString())
            assert doubled(answer.DESCRIPTOR, data) == []
            return answer.FromString(data)

        who = {"session_id": "wire", "user_id": "ana"}
        asked = pb.RouteRequest(text="a" * 300, request_id=REQUEST_ID, **who)
        for _ in range(2):  # The second is a repeat.
            routed = await told("Route", asked)
            assert (routed.dispatch.agent.agent_id, routed.dispatch.text) == ("front", "a" * 300)
        turn = {"request_id": REQUEST_ID, **who}
        done = pb.CompleteTurnRequest(agent_id="front", text="x", **turn, **hand_to("sales"))
        for _ in range(2):
            handed = await told("CompleteTurn", done)
            assert (handed.next.agent.agent_id, handed.next.text) == ("sales", "a" * 300)
        turn["request_id"] = handed.next.request_id
        await told("CompleteTurn", pb.CompleteTurnRequest(agent_id="sales", **turn, **ask()))
        locked = await told("Route", pb.RouteRequest(text="three", **who))
        assert (len(locked.dispatch.history), locked.dispatch.locked) == (1, True)
        agent = await told("Route", pb.RouteRequest(text="/agent support and now", **who))
        assert (agent.dispatch.text, agent.reply.command) == ("and now", "/agent")
        moved = pb.SetActiveAgentRequest(
            agent_id="sales", turn_request_id=agent.request_id, initiator=2, **who
        )
        await told("SetActiveAgent", moved)
        turn["request_id"] = agent.request_id
        await told("CompleteTurn", pb.CompleteTurnRequest(agent_id="sales", **turn, **finish()))
        paused = await told("Route", pb.RouteRequest(text="pay", **who))
        pausing = pb.CompleteTurnRequest(
            request_id=paused.request_id,
            agent_id=paused.dispatch.agent.agent_id,
            approval_needed=pb.ApprovalNeededOutcome(prompt="Pay?"),
            **who,
        )
        await told("CompleteTurn", pausing)
        resumed = await told(
            "ResumeTask",
            pb.ResumeTaskRequest(
                task_id=paused.task_id, request_id=paused.request_id, decision=1, **who
            ),
        )
        assert resumed.dispatch.text == "pay"
        assert resumed.dispatch.agent.agent_id == paused.dispatch.agent.agent_id
        await told("Status", pb.StatusRequest(**who))
        await told("ListTurns", pb.ListTurnsRequest(**who))
