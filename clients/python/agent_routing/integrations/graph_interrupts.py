"""LangGraph's interrupts, as requests for approval.

Owns in which thread of a checkpointer a turn runs, and with which input. Rule: the checkpointer
keeps everything, so that any process can continue; a thread that waits for a decision is not
written to by other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from langchain_core.messages import AIMessage
from langgraph.types import Command, Interrupt, StateSnapshot

from agent_routing.integrations.approvals import ApprovedRunLost, Decided, describe_call
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import Call, Calls
from agent_routing.v1.routing_service_pb2 import ListTasksResponse

ResumeValue: TypeAlias = Callable[[Any, Decided], Any]
"""Returns the value with which interrupt() returns: of the interrupt's value and the decision."""

REQUEST_KEY: Final = "agent_routing_request_id"
TASK_KEY: Final = "agent_routing_task_id"
"""Keys in the metadata of a run's checkpoints."""

_PROMPT_KEYS: Final = ("question", "prompt", "message", "instruction", "description")
"""Where an interrupt's value has its text, if it is a mapping."""

TASKS_MAX: Final = 100
"""Paused tasks of a session that are looked through."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A thread as a turn finds it. interrupts: those that wait for a value."""

    thread_id: str
    snapshot: StateSnapshot

    @property
    def interrupts(self) -> list[Interrupt]:
        """The interrupts that wait for a value, in an order that no reading changes.

        LangGraph lists those of parallel calls as they happened to end.
        """
        found = {each.id: each for task in self.snapshot.tasks for each in task.interrupts}
        return [found[key] for key in sorted(found)]

    @property
    def request_id(self) -> str:
        """The request whose run waits; empty if it was not a routed one."""
        return str((self.snapshot.metadata or {}).get(REQUEST_KEY, ""))

    @property
    def task_id(self) -> str:
        """The task whose run waits; empty if it was not a routed one."""
        return str((self.snapshot.metadata or {}).get(TASK_KEY, ""))

    @property
    def messages(self) -> list[Any]:
        """All messages, those of agents that have not ended yet included."""
        return list(_messages(self.snapshot))


def _messages(snapshot: StateSnapshot) -> Iterator[Any]:
    yield from (snapshot.values or {}).get("messages", ())
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _messages(task.state)


def aside_thread(turn: RoutedTurn, thread_id: str) -> str:
    """Return the thread of a message that must leave a waiting thread as it is.

    A message to the paused agent has a thread of its own, another task has one for all its turns.
    """
    return f"{thread_id}:{turn.key if turn.is_paused else turn.dispatch.task_id}"


def must_stay_aside(turn: RoutedTurn, waiting: Waiting) -> Calls[bool]:
    """Tell whether a turn must not write to a thread that waits."""
    if not waiting.interrupts:
        return False
    if turn.is_paused:
        return True
    if not waiting.task_id or waiting.task_id == turn.dispatch.task_id:
        # The approval was withdrawn, and the task goes on.
        return False
    page: ListTasksResponse = yield Call(
        "list_tasks_page",
        {
            "session_id": turn.run.session_id,
            "user_id": turn.user_id,
            "statuses": ["PAUSED"],
            "page_size": TASKS_MAX,
        },
    )
    return any(task.task_id == waiting.task_id for task in page.tasks)


def is_of(waiting: Waiting, requests: tuple[str, ...]) -> bool:
    """Tell whether a thread waits for the decision about one of these requests."""
    return waiting.request_id in requests and bool(waiting.interrupts or waiting.snapshot.next)


def decided_input(turn: RoutedTurn, waiting: Waiting, resume_value: ResumeValue) -> Any:
    """Return the input with which a decided run continues.

    None, with which LangGraph continues from its last checkpoint, if a run that died had already
    taken the decision. Raises ApprovedRunLost if the thread does not wait.
    """
    decided = turn.decided
    assert decided is not None
    if waiting.interrupts:
        first = waiting.interrupts[0]
        return Command(resume={first.id: resume_value(first.value, decided)})
    if waiting.snapshot.next:
        return None
    raise lost(waiting.thread_id)


def lost(thread_id: str) -> ApprovedRunLost:
    """Return the error for a decision for which no thread waits."""
    return ApprovedRunLost(
        f"thread {thread_id!r} of the checkpointer does not wait for this decision: it was already"
        " taken up, or the processes do not share a checkpointer"
    )


def refused_input(turn: RoutedTurn, waiting: Waiting, resume_value: ResumeValue) -> Command[Any]:
    """Return the input that refuses all interrupts, in a turn that cannot wait."""
    refused = Decided(is_approved=False, comment=turn.no_approval)
    return Command(
        resume={each.id: resume_value(each.value, refused) for each in waiting.interrupts}
    )


def ask_first(turn: RoutedTurn, waiting: Waiting) -> None:
    """End a turn with the first interrupt: one decision at a time."""
    value = waiting.interrupts[0].value
    name, given = _call_of(value)
    turn.need_approval(prompt_of(value), name, given)


def default_resume_value(value: Any, decided: Decided) -> Any:
    """Return what LangChain's human-in-the-loop middleware expects; for other values a bool."""
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        return _decision(decided)
    if isinstance(value, Mapping) and "action_requests" in value:
        return {"decisions": [_decision(decided) for _ in value["action_requests"]]}
    return decided.is_approved


def prompt_of(value: Any) -> str:
    """Return the prompt of an interrupt."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return str(value)
    if value.get("type") == "tool_approval":
        return describe_call(str(value.get("name")), value.get("args") or {})
    if "action_requests" in value:
        return "\n".join(
            describe_call(str(each.get("name")), each.get("args") or each.get("arguments") or {})
            for each in value["action_requests"]
        )
    text = next((value[key] for key in _PROMPT_KEYS if isinstance(value.get(key), str)), "")
    rest = {key: each for key, each in value.items() if each != text}
    return describe_call(text or "approve?", rest)


def text_since(messages: list[Any], known: frozenset[str], name: str) -> str:
    """Return the last text of an agent, among the messages that were not there before."""
    for message in reversed(messages):
        is_new = message.id not in known
        if isinstance(message, AIMessage) and is_new and message.name in (name, None):
            return str(message.text)
    return ""


def _decision(decided: Decided) -> dict[str, str]:
    if decided.is_approved:
        return {"type": "approve"}
    return {"type": "reject", "message": decided.rejection}


def _call_of(value: Any) -> tuple[str, Any]:
    """Return the name and arguments of what is to be approved, for the trace."""
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        return str(value.get("name")), value.get("args") or {}
    return "interrupt", value
