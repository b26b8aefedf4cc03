"""AddNote and ListNotes: what people note about a conversation for other people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.identifiers import PERSON_NOTE_BYTES_MAX
from routing_service.ids import new_uuid7
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.call_outcome import describe, identify
from routing_service.rpc.claim_mapping import note_out
from routing_service.rpc.event_mapping import ADD_NOTE
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

NOTE_FINGERPRINT: Final = Fingerprint(("agent_id", "task_id", "text", "author"))


class NoteCalls:
    """The RPCs of people's notes."""

    def __init__(
        self, handler: CommandHandler, cards: CardCache, new_id: Callable[[], str] = new_uuid7
    ) -> None:
        """Call one handler. new_id: makes the ids that callers leave out."""
        self._handler = handler
        self._cards = cards
        self._new_id = new_id

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {ADD_NOTE: self.add_note, "ListNotes": self.list_notes}

    async def add_note(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Note something about a conversation."""
        request = parse(pb.AddNoteRequest, data)
        note_id = self._check_note(caller, request)
        agent_id = self._agent(request.agent_id)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method=ADD_NOTE,
            request_id=note_id,
            fingerprint=NOTE_FINGERPRINT.of(request, dict(request.ListFields())),
            access=rights.as_person(caller, ADD_NOTE, request.user_id, agent_id),
            subject=caller.subject,
            trace_id=record.trace_id,
        )
        command = cmd.AddNote(note_id, agent_id, request.author, request.text, request.task_id)
        identify(record, call)
        record.agent_id = agent_id
        handled = await self._handler.handle(call, command, _note_out)
        describe(record, handled, self._handler.registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    async def list_notes(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the latest notes about a conversation."""
        request = parse(pb.ListNotesRequest, data)
        checks = FieldChecks()
        self._check_who(checks, caller, request)
        checks.done()
        agent_id = self._agent(request.agent_id)
        key = SessionKey(caller.tenant, request.session_id)
        record.tenant, record.session_id = key
        record.agent_id = agent_id
        access = rights.as_person(caller, "ListNotes", request.user_id, agent_id)
        view = await self._handler.read(key, access)
        with_texts = rights.reads_notes(caller, agent_id)
        cards = self._cards.of(self._handler.registry)
        response = pb.ListNotesResponse()
        for time_us, note in await self._handler.turns.notes(key, view.stored.notes):
            response.notes.append(note_out(note, time_us, cards, with_text=with_texts))
        return RpcAnswer(response.SerializeToString())

    def _check_note(self, caller: Caller, request: pb.AddNoteRequest) -> str:
        """Return the note's id, and fill in its author. Raises INVALID_FIELD, OWNER_MISMATCH."""
        checks = FieldChecks()
        self._check_who(checks, caller, request)
        note_id = checks.uuid("request_id", request.request_id) or self._new_id()
        checks.uuid("task_id", request.task_id)
        checks.text("text", request.text, PERSON_NOTE_BYTES_MAX)
        if not request.text.strip():
            checks.refuse("text", "is required; write what other people should know")
        checks.user("author", request.author)
        if not (request.author or caller.signed_in):
            checks.refuse("author", "is required where callers do not sign in; name the person")
        checks.done()
        if caller.signed_in:
            if request.author not in ("", caller.subject):
                raise RoutingError(
                    Reason.OWNER_MISMATCH,
                    "author is not the credential's subject; leave it out",
                    metadata={"field": "author"},
                )
            request.author = caller.subject
        return note_id

    def _check_who(
        self, checks: FieldChecks, caller: Caller, request: pb.AddNoteRequest | pb.ListNotesRequest
    ) -> None:
        is_required = caller.signed_in and not rights.is_operator(caller)
        checks.session("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        checks.agent("agent_id", request.agent_id, self._handler.registry, required=is_required)

    def _agent(self, name: str) -> str:
        return self._handler.registry.resolve(name) or name


def _note_out(made: Made) -> Answer:
    response = pb.AddNoteResponse(
        session_id=made.call.key.session_id,
        task_id=made.decided.decision.task_id,
        request_id=made.call.request_id,
        revision=made.revision,
    )
    return Answer(response.SerializeToString())
