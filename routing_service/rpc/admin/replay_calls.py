"""StartReplay, WatchReplay and CancelReplay: stored conversations with another registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.route_reason_pb2 import RouteReason
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.registry.file import RegistryFileError
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.registry_calls import candidate_text, registry_invalid
from routing_service.rpc.admin.replay_frames import Figures, FoundTurn
from routing_service.rpc.admin.replay_runs import Replay, Replays
from routing_service.rpc.admin.replay_sources import ReplaySources, Wanted
from routing_service.rpc.admin.request_fields import check_times, operator_of, tenant_of
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.audit_log import AuditLog, Operator
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.sessions.text_reads import TextReads
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

SESSIONS_DEFAULT: Final = 1_000
SESSIONS_MAX: Final = 10_000

PERIOD_DEFAULT_US: Final = 7 * 24 * 3600 * 1_000_000

TURNS_SENT_MAX: Final = 200
"""Turns in one message of a watch: with their texts it stays under 1 MiB."""

TEXT_CHARS_MAX: Final = 1_000

HEARTBEAT_S: Final = 5.0

BETWEEN_MESSAGES_S: Final = 0.25
"""Progress is sent this often at most: as often as a person sees it move."""


class ReplayCalls:
    """The RPCs about replays."""

    def __init__(
        self, replays: Replays, sources: ReplaySources, audit: AuditLog, text_reads: TextReads
    ) -> None:
        """Start and show replays. sources: of texts, which are read again when they are shown."""
        self._replays = replays
        self._sources = sources
        self._audit = audit
        self._text_reads = text_reads

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {
            "StartReplay": self.start_replay,
            "WatchReplay": self.watch_replay,
            "CancelReplay": self.cancel_replay,
        }

    async def start_replay(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Start a replay of one tenant."""
        request = parse(pb.StartReplayRequest, data)
        checks = FieldChecks()
        tenant = _one_tenant(checks, caller, request.tenant, record)
        check_times(checks, request, ("update_time_from", "update_time_before"))
        checks.channel("channel", request.channel)
        checks.number("sessions_max", request.sessions_max, 0, SESSIONS_MAX)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        if not request.candidate:
            checks.refuse("candidate", "is required; send the text of a registry file")
        checks.done()
        text = candidate_text(request.candidate)
        from_us = self._audit.now_us() - PERIOD_DEFAULT_US
        if request.HasField("update_time_from"):
            from_us = pm.time_us(request.update_time_from)
        before_us = None
        if request.HasField("update_time_before"):
            before_us = pm.time_us(request.update_time_before)
        wanted = Wanted(
            tenant, from_us, before_us, request.channel, request.sessions_max or SESSIONS_DEFAULT
        )
        try:
            replay = await self._replays.start(wanted, text)
        except RegistryFileError as error:
            raise registry_invalid(error) from error
        versions = f'registry "{replay.current_version}" and "{replay.candidate_version}"'
        await self._audit.act(
            operator_of(caller, record),
            tenant,
            "StartReplay",
            reason=request.reason,
            target=f'replay "{replay.replay_id}", {versions}',
        )
        response = pb.StartReplayResponse(
            replay_id=replay.replay_id,
            registry_version=replay.candidate_version,
            current_registry_version=replay.current_version,
        )
        return RpcAnswer(response.SerializeToString())

    async def watch_replay(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send a replay's progress and turns, until it has ended."""
        request = parse(pb.WatchReplayRequest, data)
        checks = FieldChecks()
        tenant = _one_tenant(checks, caller, request.tenant, record)
        checks.reason("read_reason", request.read_reason, REASON_BYTES_MAX)
        if request.after_position < 0:
            checks.refuse("after_position", f"is {request.after_position}; send 0 or more")
        checks.done()
        if request.read_reason:
            rights.check_texts(caller)
        replay = self._replays.find(tenant, request.replay_id)
        if request.read_reason:
            await self._note_read(operator_of(caller, record), replay, request.read_reason)
        position = min(request.after_position, len(replay.turns))
        while True:
            changed, began_s = replay.changed, time.monotonic()
            has_ended = replay.state.is_end
            turns = replay.turns[position : position + TURNS_SENT_MAX]
            position += len(turns)
            message = pb.WatchReplayResponse(progress=progress_out(replay), position=position)
            # Whose messages a candidate takes says what is in them: it may be written as a search.
            if rights.reads_texts(caller):
                message.turns.extend(
                    await self._turns_out(replay, turns, with_texts=bool(request.read_reason))
                )
            yield message.SerializeToString(), {}
            if len(replay.turns) > position:
                continue
            if has_ended:
                return
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
                await asyncio.sleep(max(0.0, began_s + BETWEEN_MESSAGES_S - time.monotonic()))
            except TimeoutError:
                continue

    async def cancel_replay(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """End a replay."""
        request = parse(pb.CancelReplayRequest, data)
        checks = FieldChecks()
        tenant = _one_tenant(checks, caller, request.tenant, record)
        if not request.replay_id:
            checks.refuse("replay_id", "is required; send that of StartReplay")
        checks.done()
        replay = self._replays.find(tenant, request.replay_id)
        has_ended = replay.state.is_end
        await self._replays.cancel(replay)
        if not has_ended:
            await self._audit.act(
                operator_of(caller, record),
                tenant,
                "CancelReplay",
                reason="",
                target=f'replay "{replay.replay_id}"',
            )
        response = pb.CancelReplayResponse(progress=progress_out(replay))
        return RpcAnswer(response.SerializeToString())

    async def _note_read(self, operator: Operator, replay: Replay, reason: str) -> None:
        target = f'texts of replay "{replay.replay_id}"'
        await self._text_reads.note(
            operator, replay.wanted.tenant, "", "WatchReplay", reason, target=target
        )

    async def _turns_out(
        self, replay: Replay, turns: Sequence[tuple[str, FoundTurn]], *, with_texts: bool
    ) -> list[pb.ReplayedTurn]:
        """Return turns as messages. Texts are read now: what was erased meanwhile is not shown."""
        made: list[pb.ReplayedTurn] = []
        texts: dict[str, str] = {}
        read = ""
        for session_id, turn in turns:
            if with_texts and session_id != read:
                key = SessionKey(replay.wanted.tenant, session_id)
                texts, read = await self._sources.texts(key), session_id
            made.append(_turn_out(session_id, turn, texts.get(turn.request_id, "")))
        return made


def _one_tenant(checks: FieldChecks, caller: Caller, asked: str, record: CallRecord) -> str:
    tenant = tenant_of(checks, caller, asked, record)
    if tenant == ALL_TENANTS:
        checks.refuse("tenant", 'is "*"; name one tenant')
    return tenant


def progress_out(replay: Replay) -> pb.ReplayProgress:
    """Return how a replay stands."""
    made = pb.ReplayProgress(
        replay_id=replay.replay_id,
        state=pb.ReplayState.ValueType(replay.state),
        current_registry_version=replay.current_version,
        registry_version=replay.candidate_version,
        start_time=pm.timestamp(replay.start_us),
        failure=replay.failure,
        conversations=replay.conversations,
        conversations_played=replay.played,
        conversations_left_out=replay.left_out,
        messages=replay.messages,
        turns_changed=replay.turns_changed,
        current=_figures_out(replay.current),
        candidate=_figures_out(replay.candidate),
        effects=[
            pb.ReplayEffectCount(effect=pb.ReplayEffect.ValueType(effect), count=count)
            for effect, count in sorted(replay.effects.items())
        ],
        sampled=replay.is_sample,
    )
    if replay.state.is_end:
        made.end_time.CopyFrom(pm.timestamp(replay.end_us))
    return made


def _figures_out(figures: Figures) -> pb.ReplayFigures:
    return pb.ReplayFigures(**msgspec.structs.asdict(figures))


def _turn_out(session_id: str, turn: FoundTurn, text: str) -> pb.ReplayedTurn:
    return pb.ReplayedTurn(
        session_id=session_id,
        request_id=turn.request_id,
        number=turn.number,
        owner_agent_id=turn.owner,
        current_agent_id=turn.current_agent,
        current_reason=RouteReason.ValueType(turn.current_reason),
        agent_id=turn.agent,
        reason=RouteReason.ValueType(turn.reason),
        effect=pb.ReplayEffect.ValueType(turn.effect),
        text=text[:TEXT_CHARS_MAX],
    )
