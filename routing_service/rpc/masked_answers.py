"""The calls of the console, and their answers without the texts of conversations.

Rule: a field that holds text is sent only if SHOWN names it. A field that is added to the contract
is therefore hidden until someone decides that operators may see it without a right to read texts.
An answer has its texts if the call says why they are read, which needs a right and is recorded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.auth.rights import check_texts, reads_prompts, reads_texts
from routing_service.core.errors import RoutingError
from routing_service.rpc.request_checks import parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer, StreamMethod, UnaryMethod
from routing_service.telemetry.call_record import CallRecord

CONSOLE_CALLS: Final[Mapping[str, frozenset[str]]] = {
    "RoutingService": frozenset(
        {
            "AddNote",
            "CancelTask",
            "ClaimTurn",
            "ClearActiveAgent",
            "CompleteTurn",
            "KeepTurn",
            "ListAgents",
            "ListNotes",
            "ListTurns",
            "ListWaiting",
            "ReleaseTurn",
            "ResumeTask",
            "SetActiveAgent",
            "Status",
            "WatchApprovals",
            "WatchSession",
        }
    ),
    "AdminService": frozenset(
        {
            "CancelReplay",
            "EraseUser",
            "ExportUser",
            "GetRegistry",
            "GetRoutingStats",
            "GetServerStatus",
            "GetSessionAt",
            "GetStickiness",
            "ListEvents",
            "ListSessions",
            "PurgeSessions",
            "ReloadAgents",
            "SetStickiness",
            "StartReplay",
            "VerifyAudit",
            "WatchEvents",
            "WatchReplay",
        }
    ),
}
"""The RPCs that the console's pages call, by service. Its listener serves no others."""

SHOWN: Final = frozenset(
    {
        # Ids and positions.
        "agent_id",
        "agent_ids",
        "answered_by",
        "asker_agent_id",
        "current_agent_id",
        "cursor",
        "event_id",
        "from_agent_id",
        "home_agent_id",
        "message_id",
        "next_page_token",
        "next_request_id",
        "note_id",
        "owner",
        "owner_agent_id",
        "parent_request_id",
        "previous_agent_id",
        "queued_request_ids",
        "registry_version",
        "replay_id",
        "request_id",
        "root_request_id",
        "session_id",
        "suggestion_id",
        "second_request_agent_id",
        "task_id",
        "to_agent_id",
        "tenant",
        "trace_id",
        "turn_request_id",
        "user_id",
        # Who called.
        "acting_for",
        "actor",
        "author",
        "claimant",
        "released_from",
        "taken_from",
        # How a session is addressed.
        "channel",
        "locale",
        # The registry's own texts about an agent.
        "RegistryAgent.aliases",
        "RegistryAgent.handoff_to",
        "color",
        "description",
        "display_name",
        "icon",
        # What the service itself says.
        "MessageTopic.model",
        "GetRegistryResponse.read_only_reason",
        "PendingApproval.by",
        "RegistryWarning.message",
        "ReloadAgentsResponse.added_agent_ids",
        "ReloadAgentsResponse.changed_agent_ids",
        "ReloadAgentsResponse.changed_settings",
        "ReloadAgentsResponse.previous_file",
        "ReloadAgentsResponse.previous_registry_version",
        "ReloadAgentsResponse.removed_agent_ids",
        "ReplayProgress.failure",
        "Verdict.detail",
        "current_registry_version",
        "last_seal_hash",
        "problems",
        "server",
        "state_version",
        "store_engine",
        "topic_model",
        "version",
        # Words of the contract.
        "command",
        "method",
        "rule",
        "Unreadable.reason",
        # An operator's own, for the other operators.
        "GetStickinessResponse.reason",
    }
)
"""Names of the fields whose text is sent, in every message or in the one named before the dot.
Other fields with the name reason have the text of a person or a model."""

_ShowsTexts = Callable[[Caller, bytes], bool]
"""Says whether the answer to a call has its texts. The call's own handler refuses who may not."""


def _says_why(
    request_class: type[
        pb.ListTurnsRequest | admin_pb.ListEventsRequest | admin_pb.WatchReplayRequest
    ],
) -> _ShowsTexts:
    def shows_texts(_caller: Caller, data: bytes) -> bool:
        try:
            return bool(parse(request_class, data).read_reason)
        except RoutingError:
            return False  # The handler refuses it.

    return shows_texts


_SHOWS_TEXTS: Final[Mapping[str, _ShowsTexts]] = {
    "ListTurns": _says_why(pb.ListTurnsRequest),
    "ListEvents": _says_why(admin_pb.ListEventsRequest),
    "WatchReplay": _says_why(admin_pb.WatchReplayRequest),
    # What an approval is about is what its deciders decide on.
    "WatchApprovals": lambda caller, _data: reads_prompts(caller),
    # A read of notes has no reason, so it needs the right alone.
    "ListNotes": lambda caller, _data: reads_texts(caller),
    # An export is whole, or refused: see _NEEDS_TEXTS.
    "ExportUser": lambda _caller, _data: True,
}

_NEEDS_TEXTS: Final = frozenset({"ExportUser"})
"""Calls that are refused on the console without the right to read texts, as their answers are
nothing without them."""

MASKED_KEPT_MAX: Final = 8
"""Messages of a kind of stream that are kept masked for other callers."""

_TEXT_TYPES: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

_FREE_FORM: Final = frozenset(
    {"google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value"}
)
"""Messages whose content the contract does not name."""


def masked_methods(routing: Methods, admin: Methods) -> tuple[Methods, Methods]:
    """Return the methods of both services; those of the console answer without texts.

    The listener serves CONSOLE_CALLS alone, so the others stay as they are.
    """
    services = (
        (pb.DESCRIPTOR.services_by_name["RoutingService"], routing),
        (admin_pb.DESCRIPTOR.services_by_name["AdminService"], admin),
    )
    masked: list[Methods] = []
    for service, methods in services:
        served = CONSOLE_CALLS[service.name]
        masked.append(
            {
                name: _masked(service.methods_by_name[name], method) if name in served else method
                for name, method in methods.items()
            }
        )
    return masked[0], masked[1]


def hide_texts(message: Message) -> None:
    """Clear every text of a message, and of the messages in it, that SHOWN does not name."""
    for field, value in message.ListFields():
        if field.message_type is None:
            if field.type in _TEXT_TYPES and not _is_shown(field):
                message.ClearField(field.name)
        elif field.message_type.full_name in _FREE_FORM:
            message.ClearField(field.name)
        elif field.message_type.GetOptions().map_entry:
            if _has_text(field.message_type):
                message.ClearField(field.name)
        elif field.is_repeated:
            for each in value:
                hide_texts(each)
        else:
            hide_texts(value)


def _is_shown(field: FieldDescriptor) -> bool:
    owner = field.containing_type
    assert owner is not None, "a message lists its own fields alone"
    return field.name in SHOWN or f"{owner.name}.{field.name}" in SHOWN


def _has_text(entry: Descriptor) -> bool:
    return any(
        field.message_type is not None or field.type in _TEXT_TYPES for field in entry.fields
    )


def _masked(described: MethodDescriptor, method: Callable[..., Any]) -> Callable[..., Any]:
    answer_class = GetMessageClass(described.output_type)
    shows_texts = _SHOWS_TEXTS.get(described.name, lambda _caller, _data: False)
    if described.server_streaming:
        is_refused = described.name in _NEEDS_TEXTS
        return _masked_stream(answer_class, method, shows_texts, needs_texts=is_refused)
    return _masked_unary(answer_class, method, shows_texts)


def _masked_unary(
    answer_class: type[Message], method: UnaryMethod, shows_texts: _ShowsTexts
) -> UnaryMethod:
    async def answer(caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        answered = await method(caller, data, record)
        if shows_texts(caller, data):
            return answered
        return RpcAnswer(_without_texts(answer_class, answered.body), answered.replayed)

    return answer


def _masked_stream(
    answer_class: type[Message],
    method: StreamMethod,
    shows_texts: _ShowsTexts,
    *,
    needs_texts: bool = False,
) -> StreamMethod:
    # All consoles get the same batch of changes at the same time: it is masked for the first one.
    without_texts = lru_cache(MASKED_KEPT_MAX)(partial(_without_texts, answer_class))

    async def stream(
        caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        if needs_texts:
            check_texts(caller)
        bodies = method(caller, data, record)
        is_shown = shows_texts(caller, data)
        try:
            async for body, position in bodies:
                yield body if is_shown else without_texts(body), position
        finally:
            await bodies.aclose()

    return stream


def _without_texts(answer_class: type[Message], body: bytes) -> bytes:
    message = answer_class.FromString(body)
    message.DiscardUnknownFields()
    hide_texts(message)
    return message.SerializeToString()
