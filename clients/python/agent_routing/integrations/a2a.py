"""Agents of other services, over the A2A protocol: a worker's function that carries turns to one.

    worker = Worker(client)
    planner = RemoteAgent("https://planner.example.org", client=client)
    worker.agent("planner")(planner.answer)

Rule: which remote task belongs to a conversation is in the turn's steps, which the service stores,
so any worker continues it. A turn that is delivered again finds the remote task that its message
began, by the message's id, instead of sending the message again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    Artifact,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf import json_format

from agent_routing import outcomes
from agent_routing.aio import AsyncClient
from agent_routing.content import Item, data_item, step, text_item, uri_item
from agent_routing.integrations.a2a_bounds import CARD_BYTES_MAX, AnswerTooLong, bounded, origin_of
from agent_routing.integrations.agent_tools import note_of_dispatch
from agent_routing.outcomes import Answer, Outcome
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.worker import InboxTurn

POLL_S_DEFAULT: Final = 2.0
"""Between two looks at a remote task whose answer is not streamed, or whose stream ended early."""

REPLY_S_DEFAULT: Final = 300.0
"""How long the remote service may be silent: a model thinks for minutes."""

STEP_KIND: Final = "a2a"
"""Of the step that has the remote task: its output is JSON with context_id, task_id, state."""

PAST_TURNS: Final = 20
"""Own turns that are looked at for the remote task; each turn of a remote agent has its step."""

TASKS_MAX: Final = 20
"""Remote tasks of one context that are looked at, the newest; one turn begins one."""

MESSAGES_MAX: Final = 20
"""Messages of each of these tasks that are looked at."""

TEXT_BYTES_MAX: Final = 32 * 1024
ITEMS_MAX: Final = 16
ITEMS_BYTES_MAX: Final = 64 * 1024
"""The service's bounds of an answer: one above them would be refused in each attempt."""

TOO_LONG: Final = "The answer is too long to be shown. Please ask for a part of it."
"""What the user reads in its place."""

_WORKING: Final = {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}
_WAITING: Final = {TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED}
_CONTEXTS: Final = uuid.UUID("0b9ff7a6-6f0e-4f3c-9b0e-3a4a3cb1b0d2")

_log: Final = logging.getLogger("agent_routing.a2a")

A2AClient: TypeAlias = Any
"""The SDK's client: its own types are not installed where this package is checked."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """The remote task that an earlier turn left behind. task_id: empty: only a context."""

    context_id: str
    task_id: str = ""
    is_waiting: bool = False
    """Whether it waits for the user, so that the next message continues it."""


class RemoteAgent:
    """A worker's function for an agent of another service.

    url: where its card is (/.well-known/agent-card.json below it). client: of the routing service,
    for the turns before. completed: the outcome of a remote task that was completed; None:
    outcomes.complete(), so that the registry names the next agent. token: a bearer token for the
    remote agent, or a function that returns one and is called for each request. reply_timeout: how
    long, in seconds, the remote agent may be silent. http: in place of both; it stays the caller's.
    poll: seconds between two looks at a task that works. allow_origins: where the card may send
    requests besides the origin of url, such as https://rpc.example.org. too_long: what the user
    reads if the answer is longer than the service, or the worker, takes.
    """

    def __init__(
        self,
        url: str,
        *,
        client: AsyncClient,
        completed: Outcome | None = None,
        token: str | Callable[[], str] | None = None,
        reply_timeout: Seconds = REPLY_S_DEFAULT,
        http: httpx.AsyncClient | None = None,
        poll: Seconds = POLL_S_DEFAULT,
        allow_origins: Sequence[str] = (),
        too_long: str = TOO_LONG,
    ) -> None:
        for each in (url, *allow_origins):
            origin_of(each)
        self._url = url
        self._allow_origins = allow_origins
        self._too_long = too_long
        self._client = client
        self._completed = completed or outcomes.complete()
        self._token = token
        self._reply_s = positive_seconds("reply_timeout", reply_timeout)
        self._http = http
        self._poll_s = positive_seconds("poll", poll)

    async def answer(self, turn: InboxTurn) -> Answer:
        """Carry a turn to the remote agent, and return what became of it.

        An answer that is too long fails the turn, and the user reads that. Raises the SDK's errors
        if the remote service cannot be reached or refuses, and OriginNotAllowed: the worker then
        tries the turn again.
        """
        before = await self._before(turn)
        try:
            answer = await self._answered(turn, before)
            _check_length(answer)
        except AnswerTooLong as error:
            _log.warning("remote_answer_too_long url=%s error=%s", self._url, error)
            failed = outcomes.failure(f"the remote answer is too long: {error}")
            return Answer(self._too_long, failed, [], [_step(before.context_id, "", "too long")])
        return answer

    async def _answered(self, turn: InboxTurn, before: RemoteTask) -> Answer:
        """Return the answer of the remote agent, of any length that the worker takes."""
        async with self._remote() as remote:
            task = await self._begun(remote, turn, before)
            if task is None:
                task = await self._sent(remote, turn, before)
            if isinstance(task, Message):
                return _answer_of_message(task, before)
            while task.status.state in _WORKING:
                await asyncio.sleep(self._poll_s)
                task = await remote.get_task(GetTaskRequest(id=task.id))
        return _answer_of_task(task, self._completed)

    @asynccontextmanager
    async def _remote(self) -> AsyncIterator[A2AClient]:
        """Connect to the remote agent, as its card says: also with streaming, if it has that."""
        http = self._http or httpx.AsyncClient(timeout=self._reply_s, auth=self._sign)
        try:
            async with bounded(http, self._url, self._allow_origins) as within:
                factory = ClientFactory(ClientConfig(httpx_client=within))
                of_card = {"extensions": {"bytes_max": CARD_BYTES_MAX}}
                try:
                    remote = await factory.create_from_url(self._url, resolver_http_kwargs=of_card)
                except AnswerTooLong as error:
                    raise ValueError(f"the card of {self._url} is too long: {error}") from error
                yield remote
        finally:
            if self._http is None:
                await http.aclose()

    def _sign(self, request: httpx.Request) -> httpx.Request:
        """Give a request to the remote agent its token."""
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else self._token()
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    async def _before(self, turn: InboxTurn) -> RemoteTask:
        """Return the remote task of the newest turn of this agent in the task."""
        page = await self._client.list_turns_page(
            turn.session_id,
            agent_id=turn.agent_id,
            task_id=turn.dispatch.task_id,
            order="NEWEST_FIRST",
            page_size=PAST_TURNS,
        )
        for past in page.turns:
            for taken in past.steps:
                if taken.kind == STEP_KIND:
                    known = json.loads(taken.output)
                    is_waiting = known["state"] in {TaskState.Name(state) for state in _WAITING}
                    return RemoteTask(known["context_id"], known["task_id"], is_waiting)
        # The same in each attempt, so that an attempt finds what the one before began.
        name = f"{turn.session_id}\n{turn.dispatch.task_id}\n{turn.agent_id}"
        return RemoteTask(str(uuid.uuid5(_CONTEXTS, name)))

    async def _begun(self, remote: A2AClient, turn: InboxTurn, before: RemoteTask) -> Task | None:
        """Return the remote task that has this turn's message already; None: there is none."""
        request = ListTasksRequest(
            context_id=before.context_id, page_size=TASKS_MAX, history_length=MESSAGES_MAX
        )
        try:
            listed = await remote.list_tasks(request)
        except (A2AError, A2AClientError, NotImplementedError, AnswerTooLong) as error:
            # Services before version 1.0 of the protocol cannot list tasks: the message is sent
            # again. The SDK's client knows that without asking (NotImplementedError).
            _log.debug("remote_tasks_not_listed url=%s error=%s", self._url, error)
            return None
        for task in listed.tasks:
            if any(message.message_id == turn.request_id for message in task.history):
                return await remote.get_task(GetTaskRequest(id=task.id))
        return None

    async def _sent(self, remote: A2AClient, turn: InboxTurn, before: RemoteTask) -> Task | Message:
        """Send the turn's message; return the remote task, or the answer if there is no task."""
        try:
            return await self._replied(remote, turn, before)
        except TaskNotFoundError as error:
            if not before.is_waiting:
                raise
            # The remote service has forgotten its task, as one without a database does.
            _log.warning("remote_task_gone task_id=%s error=%s", before.task_id, error)
            return await self._replied(remote, turn, RemoteTask(before.context_id))

    async def _replied(
        self, remote: A2AClient, turn: InboxTurn, before: RemoteTask
    ) -> Task | Message:
        message = Message(
            message_id=turn.request_id,
            context_id=before.context_id,
            task_id=before.task_id if before.is_waiting else "",
            role=Role.ROLE_USER,
            parts=_parts(turn),
        )
        task_id = ""
        async for event in remote.send_message(SendMessageRequest(message=message)):
            match event.WhichOneof("payload"):
                case "message":
                    return event.message
                case "task":
                    task_id = event.task.id
                case "status_update":
                    task_id = event.status_update.task_id
                case "artifact_update":
                    task_id = event.artifact_update.task_id
        if not task_id:
            raise ValueError(f"the remote agent at {self._url} answered with nothing")
        return await remote.get_task(GetTaskRequest(id=task_id))


def _parts(turn: InboxTurn) -> Iterator[Part]:
    """Yield a message as A2A has it, after a note about a handoff or a question to this agent."""
    led = Dispatch()
    led.CopyFrom(turn.dispatch)
    # A remote agent cannot hand over.
    led.ClearField("candidates")
    if note := note_of_dispatch(led, {}):
        yield Part(text=note, media_type="text/plain")
    if turn.text:
        yield Part(text=turn.text)
    for item in turn.items:
        match item.WhichOneof("content"):
            case "text":
                yield Part(text=item.text, media_type=item.content_type)
            case "data":
                yield Part(raw=item.data, media_type=item.content_type)
            case "uri":
                yield Part(url=item.uri, media_type=item.content_type)


def _check_length(answer: Answer) -> None:
    """Raise AnswerTooLong for one that the service would refuse."""
    items = list(answer.items)
    sizes = {
        "bytes of text": (len(answer.text.encode()), TEXT_BYTES_MAX),
        "items": (len(items), ITEMS_MAX),
        "bytes of items": (sum(item.ByteSize() for item in items), ITEMS_BYTES_MAX),
    }
    for what, (size, size_max) in sizes.items():
        if size > size_max:
            raise AnswerTooLong(f"it has {size} {what}; the service takes at most {size_max}")


def _answer_of_message(message: Message, before: RemoteTask) -> Answer:
    """Return the answer of a remote agent that begins no task."""
    context_id = message.context_id or before.context_id
    return Answer(
        _text(message.parts),
        outcomes.proceed(),
        list(_items(message.parts, with_text=False)),
        [_step(context_id, "", "message")],
    )


def _answer_of_task(task: Task, completed: Outcome) -> Answer:
    """Return a remote task that does not work any more as an answer."""
    state = task.status.state
    outcome: Outcome
    match state:
        case TaskState.TASK_STATE_COMPLETED:
            outcome = completed
        case TaskState.TASK_STATE_INPUT_REQUIRED | TaskState.TASK_STATE_AUTH_REQUIRED:
            # For AUTH_REQUIRED the remote message says where to sign in; the user then writes on.
            outcome = outcomes.follow_up()
        case _:
            outcome = outcomes.failure(f"the remote task ended as {_name(state)}")
    text = _text(task.status.message.parts)
    # An artifact may come in pieces, each of which is a part of it.
    made = "\n\n".join(filter(None, (_text(each.parts, "") for each in task.artifacts)))
    return Answer(
        text or made,
        outcome,
        list(_artifact_items(task.artifacts, with_text=bool(text))),
        [_step(task.context_id, task.id, _name(state))],
    )


def _artifact_items(artifacts: Iterable[Artifact], *, with_text: bool) -> Iterator[Item]:
    for artifact in artifacts:
        yield from _items(artifact.parts, with_text=with_text)


def _items(parts: Iterable[Part], *, with_text: bool) -> Iterator[Item]:
    """Yield parts as items. with_text: also those that are text."""
    for part in parts:
        match part.WhichOneof("content"):
            case "text" if with_text:
                yield text_item(part.text, part.media_type or "text/plain")
            case "raw":
                yield data_item(part.raw, part.media_type or "application/octet-stream")
            case "url":
                yield uri_item(part.url, part.media_type or "application/octet-stream")
            case "data":
                text = json_format.MessageToJson(part.data, indent=None)
                yield text_item(text, part.media_type or "application/json")


def _text(parts: Iterable[Part], between: str = "\n\n") -> str:
    """Return the text of parts. between: two of them."""
    return between.join(part.text for part in parts if part.WhichOneof("content") == "text")


def _step(context_id: str, task_id: str, state: str) -> Any:
    known = {"context_id": context_id, "task_id": task_id, "state": state}
    return step("remote task", kind=STEP_KIND, output=json.dumps(known))


def _name(state: int) -> str:
    """Return a state's name, or its number if the SDK does not know it."""
    try:
        return str(TaskState.Name(state))
    except ValueError:
        return str(state)
