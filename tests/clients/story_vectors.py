"""Makes tests/clients/vectors/stories.json: the example conversations as scenarios for all clients.

    python -m tests.clients.story_vectors     writes the file

Each story is played by its scripted agents against the pure core; each command that the core gets
becomes a call, with the decision as the expected answer. Texts of replies are not compared: they
are the texts' own tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from routing_service.core import commands as core
from routing_service.core.errors import RoutingError
from routing_service.examples.stories import STORIES, Story, StoryTurn
from tests.unit.examples.test_examples import Conversation

PATH = Path(__file__).parent / "vectors" / "stories.json"

SESSION = "${id:chat}"
PRESENT = {"$present": True}
USER = "ana"

# Messages of the example whose topics are detected, with the agent and the reason of each.
TOPIC_MESSAGES = (
    ("How many blue widgets are in stock?", "inventory", "TOPIC_SWITCH"),
    ("Show me order 1042", "sales_orders", "TOPIC_SWITCH"),
    ("Has it been shipped?", "sales_orders", "STICKY"),
    ("I need an invoice", "finance", "TOPIC_SWITCH"),
)


class Recorder(Conversation):
    """Plays a story, and keeps each command with its decision as a step of a scenario."""

    def __init__(self, story: Story) -> None:
        super().__init__(story)
        self.steps: list[dict[str, Any]] = [{"network": f"serve-{story.example}"}]
        self.names: dict[str, str] = {}
        self.turn: StoryTurn | None = None
        self.routed = 0

    def record(self, turn: StoryTurn) -> None:
        """Play one turn, then look at the session."""
        self.turn = turn
        self.play(turn)
        request = {"session_id": SESSION, "user_id": USER}
        answer = {
            "active_agent": agent(turn.expect_active_after),
            "locked": turn.expect_locked_after or None,
            "pending_approval": PRESENT if turn.expect_paused_after else None,
        }
        self.steps.append({"rpc": "Status", "request": request, "answer": answer})

    def decide(self, command: core.Command) -> core.Decision:
        """Decide a command as usual, and record it."""
        rpc, request = self.request_of(command)
        step: dict[str, Any] = {"rpc": rpc, "request": request}
        self.steps.append(step)
        try:
            decision = super().decide(command)
        except RoutingError as error:
            rules = [{"name": violation.subject} for violation in error.violations]
            step["error"] = {
                "code": "FAILED_PRECONDITION",
                "reason": error.reason.name,
                "violations": rules,
            }
            return self.raise_again(error)
        step["answer"] = self.answer_of(rpc, decision)
        if rpc == "Route":
            self.routed += 1
            step["capture"] = {f"task-{self.routed}": "task_id"}
        if decision.dispatch is not None:
            name = f"turn-{len(self.names) + 1}"
            self.names[decision.dispatch.request_id] = name
            place = "next" if rpc == "CompleteTurn" else "dispatch"
            step["capture"] = {name: f"{place}.request_id", **step.get("capture", {})}
        if self.turn is not None and self.turn.comes_twice and rpc != "CompleteTurn":
            step["name"] = f"first-{len(self.steps)}"
            again = {"rpc": rpc, "request": request, "answer": {}}
            self.steps.append({**again, "same_as": step["name"], "replayed": True})
        return decision

    @staticmethod
    def raise_again(error: RoutingError) -> core.Decision:
        """Let the scripted agent see the refusal."""
        raise error

    def request_of(self, command: core.Command) -> tuple[str, dict[str, Any]]:
        """Return a command as an RPC and its request."""
        session = {"session_id": SESSION, "user_id": USER}
        match command:
            case core.RouteMessage():
                assert self.turn is not None
                request = {**session, "text": command.text, "locale": self.story.locale}
                request["channel"] = self.story.channel
                lists = {
                    "entitlements": list(self.story.entitlements),
                    "items": [items_of(item) for item in self.turn.items],
                    "metadata": dict(self.story.metadata),
                }
                request |= {name: value for name, value in lists.items() if value}
                if self.turn.comes_twice:
                    request["request_id"] = f"${{uuid:message-{len(self.steps)}}}"
                return "Route", request
            case core.CompleteTurn():
                request = {**session, "request_id": self.variable(command.request_id)}
                request |= {"agent_id": command.agent_id, "text": command.text}
                return "CompleteTurn", request | outcome_of(command.outcome)
            case core.ResumeTask():
                request = {**session, "request_id": self.variable(command.request_id)}
                request |= {
                    "task_id": f"${{task-{self.routed}}}",
                    "decision": f"DECISION_{command.decision.name}",
                    "comment": command.comment,
                }
                return "ResumeTask", request
            case _:
                raise AssertionError(command)

    def variable(self, request_id: str) -> str:
        """Return the variable for a request id that a dispatch has brought."""
        return f"${{{self.names[request_id]}}}"

    def answer_of(self, rpc: str, decision: core.Decision) -> dict[str, Any]:
        """Return what a decision's answer has to be like."""
        plan = decision.dispatch
        dispatch = (
            {
                "agent": agent(plan.agent_id),
                "reason": f"ROUTE_REASON_{plan.reason.name}",
                "previous_agent_id": plan.previous_agent or None,
                "locked": plan.locked or None,
            }
            if plan
            else None
        )
        if rpc == "ResumeTask":
            return {"dispatch": dispatch}
        if rpc == "CompleteTurn":
            assert decision.status is not None
            return {
                "outcome_status": f"OUTCOME_STATUS_{decision.status.name}",
                "text": decision.text or None,
                "next": dispatch,
            }
        reply = decision.reply
        is_bypassed = plan is not None and plan.agent_id != self.registry.home_agent_id
        return {
            "dispatch": dispatch,
            "reply": {"command": f"/{reply.command}", "text": PRESENT} if reply else None,
            "supervisor_bypassed": is_bypassed or None,
        }


def agent(agent_id: str) -> dict[str, str] | None:
    """Return what an agent's card is like; None for no agent."""
    return {"agent_id": agent_id} if agent_id else None


def items_of(item: Any) -> dict[str, str]:
    """Return an item of a story as JSON of the contract."""
    value = {"uri": item.uri} if item.uri else {"text": item.text}
    return {"content_type": item.content_type, **value}


def outcome_of(outcome: core.Outcome) -> dict[str, Any]:
    """Return an outcome as the field of its name."""
    match outcome:
        case core.Proceed():
            return {"proceed": {}}
        case core.FollowUp(timeout_us=timeout_us):
            return {"follow_up": {"timeout": f"{timeout_us / 1e6:g}s"} if timeout_us else {}}
        case core.Complete(summary=summary, message=message):
            return {"complete": filled(summary=summary, message=message)}
        case core.HandOff():
            fields = filled(
                agent_id=outcome.agent_id,
                reason=outcome.reason,
                context=outcome.context,
                message=outcome.message,
            )
            return {"handoff": {**fields, "mode": f"HANDOFF_MODE_{outcome.mode.name}"}}
        case core.AskApproval(prompt=prompt):
            return {"approval_needed": {"prompt": prompt}}
        case core.Fail(message=message):
            return {"failure": filled(message=message)}
        case _:
            raise AssertionError(outcome)


def filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def scenario_of(name: str) -> dict[str, Any]:
    """Play a story; return it as a scenario."""
    recorder = Recorder(STORIES[name])
    for turn in STORIES[name].turns:
        recorder.record(turn)
    steps = [*recorder.steps, {"network": "back"}]
    return {"name": f"story-{name.replace('_', '-')}", "why": STORIES[name].title, "steps": steps}


def topics_scenario() -> dict[str, Any]:
    """Return the conversation of the example in which the service notices the topics."""
    steps: list[dict[str, Any]] = [{"network": "serve-erp_topics"}]
    session = {"session_id": SESSION, "user_id": USER}
    for number, (text, agent_id, reason) in enumerate(TOPIC_MESSAGES, start=1):
        steps += [
            {
                "rpc": "Route",
                "request": {**session, "text": text, "locale": "en", "channel": "web"},
                "answer": {
                    "dispatch": {"agent": agent(agent_id), "reason": f"ROUTE_REASON_{reason}"},
                    "supervisor_bypassed": True,
                },
                "capture": {f"turn-{number}": "dispatch.request_id"},
            },
            {
                "rpc": "CompleteTurn",
                "request": {
                    **session,
                    "request_id": f"${{turn-{number}}}",
                    "agent_id": agent_id,
                    "text": "Here you are.",
                    "proceed": {},
                },
                "answer": {"outcome_status": "OUTCOME_STATUS_APPLIED", "next": None},
            },
        ]
    return {
        "name": "story-erp-topics",
        "why": "The service itself notices whose message it is, and nobody hands over.",
        "steps": [*steps, {"network": "back"}],
    }


def story_vectors() -> str:
    """Return the file's text."""
    scenarios = [*map(scenario_of, STORIES), topics_scenario()]
    about = "The example conversations of the shipped registries, made by story_vectors.py."
    made = {"about": about, "scenarios": scenarios}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(story_vectors(), encoding="utf-8")
