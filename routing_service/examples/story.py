"""The form of a story: a user's messages, a person's decisions, and the expected results.

Its rule: a story is exact. Each turn names every agent that answers it, in order, the reason of the
first dispatch, and whether an agent waits for an answer afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoryItem:
    """An item of a message other than its text: a content type, and either text or an address."""

    content_type: str
    text: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True)
class StoryTurn:
    """One message of the user's, and the expected results."""

    user_text: str
    # The agents that answered, in order; empty for a command that only replies.
    expect_agent_ids: tuple[str, ...] = ()
    # The route reason of the first dispatch, such as "STICKY"; empty without a dispatch.
    expect_reason: str = ""
    # Whether, afterwards, an agent waits for the user's answer.
    expect_locked_after: bool = False
    # The command that the message is, without its slash; empty for ordinary text.
    expect_command: str = ""
    # The rules that refused the first agent's handoff, or the user's /agent.
    expect_refused_rules: tuple[str, ...] = ()
    # The active agent afterwards; empty for the supervisor.
    expect_active_after: str = ""
    # Whether, afterwards, the task waits for a person's approval.
    expect_paused_after: bool = False
    # Sent along with the text.
    items: tuple[StoryItem, ...] = ()
    # "approve" or "reject": a person's decision about the requested approval instead of a user's
    # message. The text is the comment.
    decision: str = ""
    # The connection breaks before the answer: the same request is sent once more, under its id.
    comes_twice: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """A conversation over one of the examples."""

    name: str
    # Its purpose, in a sentence.
    title: str
    # A key of EXAMPLES.
    example: str
    locale: str
    channel: str
    turns: tuple[StoryTurn, ...]
    entitlements: tuple[str, ...] = ()
    # Kept on every task of the story.
    metadata: tuple[tuple[str, str], ...] = ()
    # The final states of the story's tasks, in order, such as "completed"; empty if not checked.
    expect_task_statuses: tuple[str, ...] = ()
