"""What agents said, among the events of a Google ADK session.

Owns the answer of an agent, and what its model reads of the turn. An agent that is not an LlmAgent,
such as a SequentialAgent, is one agent for the service: the agents below it are its steps.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.events import Event
from google.genai import types

from agent_routing.integrations.adk_confirmations import CONFIRM, REQUEST_KEY

_OWN_CALL_PREFIX: Final = "adk-"
"""Ids of function calls that ADK generated; models never see them."""


def authors_of(agent: BaseAgent) -> frozenset[str]:
    """Return the authors of an agent's answer: the agent, and its steps if it has some."""
    if isinstance(agent, LlmAgent):
        return frozenset((agent.name,))
    return frozenset((agent.name,)).union(*(_all_below(each) for each in agent.sub_agents))


def said_by(agent: BaseAgent, events: Sequence[Event]) -> str:
    """Return an agent's last text in events.

    That of a ParallelAgent is the texts of its branches, that of another agent with steps the text
    of the step that spoke last.
    """
    own = [event for event in events if event.author == agent.name and _text(event)]
    if own or isinstance(agent, LlmAgent):
        return _text(own[-1]) if own else ""
    if isinstance(agent, ParallelAgent):
        branches = (said_by(each, events) for each in agent.sub_agents)
        return "\n\n".join(text for text in branches if text)
    for event in reversed(events):
        if _text(event):
            for step in agent.sub_agents:
                if event.author in authors_of(step):
                    return said_by(step, events)
    return ""


def contents_of_turn(
    context: Any, keys: Container[str], others: Container[str] = ()
) -> Iterator[types.Content]:
    """Yield what an agent said and called in this turn, with the results.

    keys: the requests of the turn. others: agents whose texts and results it reads as context. Each
    call has its last result where the first one was: a tool that waited for a decision has two.
    """
    name = context.agent_name
    events = [
        event
        for event in context.session.events
        if (event.custom_metadata or {}).get(REQUEST_KEY) in keys
        and not event.partial
        and event.content
        and event.content.parts
        and _is_of_branch(event, context)
    ]
    later = _later_results(events)
    seen = [event for event in events if event.author == name or event.author in others]
    own = [event for event in seen if event.author == name]
    results = {each.id: each for event in own for each in event.get_function_responses()} | later
    called: set[str | None] = set()
    given: set[str | None] = set()
    for event in seen:
        if event.author != name:
            told = list(_told(event))
            if told:
                yield types.Content(role="user", parts=told)
            continue
        has_tools = event.get_function_calls() or event.get_function_responses()
        if not has_tools and not called.isdisjoint(later):
            # What it said while it waited: the result follows its call.
            continue
        called.update(each.id for each in event.get_function_calls())
        if parts := list(_own_parts(event, results, given)):
            yield types.Content(role=event.content.role, parts=parts)
    # Of tools that had no first result.
    if missing := [later[key] for key in later if key in called and key not in given]:
        yield types.Content(role="user", parts=[_response_part(each) for each in missing])


def _later_results(events: Iterable[Event]) -> dict[str | None, types.FunctionResponse]:
    """Return what long-running tools returned after a decision, by the ids of their calls."""
    return {
        each.id: each
        for event in events
        if event.author == "user"
        for each in event.get_function_responses()
        if each.name != CONFIRM
    }


def _response_part(response: types.FunctionResponse) -> types.Part:
    return _without_own_id(types.Part(function_response=response))


def _own_parts(
    event: Event, results: Mapping[str | None, types.FunctionResponse], given: set[str | None]
) -> Iterator[types.Part]:
    """Yield the parts of an agent's own event. given: the ids whose results were yielded."""
    assert event.content is not None
    for part in event.content.parts or []:
        call, result = part.function_call, part.function_response
        if call is not None and call.name == CONFIRM:
            continue
        if result is None:
            yield _without_own_id(part)
            continue
        if result.id is not None and result.id in given:
            continue
        given.add(result.id)
        yield _response_part(result if result.id is None else results[result.id])


def _without_own_id(part: types.Part) -> types.Part:
    """Return a copy of a part, without an id that ADK generated."""
    own = part.model_copy(deep=True)
    for each in (own.function_call, own.function_response):
        if each is not None and (each.id or "").startswith(_OWN_CALL_PREFIX):
            each.id = None
    return own


def _told(event: Event) -> Iterator[types.Part]:
    """Yield the texts and results of another step, as context."""
    if text := _text(event):
        yield types.Part(text=f"For context: agent {event.author} answered: {text}")
    for result in event.get_function_responses():
        if result.name != CONFIRM:
            told = f"For context: agent {event.author} got from {result.name}: {result.response}"
            yield types.Part(text=told)


def _is_of_branch(event: Event, context: Any) -> bool:
    """Tell whether an event is of a run's branch of a ParallelAgent, or of what came before it."""
    branch = getattr(context, "branch", None) or context._invocation_context.branch  # noqa: SLF001
    if not branch or not event.branch:
        return True
    return f"{branch}.".startswith(f"{event.branch}.")


def _all_below(agent: BaseAgent) -> Iterable[str]:
    yield agent.name
    for below in agent.sub_agents:
        yield from _all_below(below)


def _text(event: Event) -> str:
    parts = event.content.parts if event.content else None
    return "".join(part.text for part in parts or [] if part.text and not part.thought)
