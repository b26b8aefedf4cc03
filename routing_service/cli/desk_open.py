"""``agent-routing desk open``: the conversations of an agent's people, live at one terminal.

Rule: what is shown comes from the service, which is asked every second; what the person types goes
out only with Enter, and a text comes back for editing if it could not be sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import typer
from rich.text import Text

from agent_routing import Admin, RoutingError, outcomes
from agent_routing.errors import Claimed, DeadlineExceeded, Unavailable
from agent_routing.outcomes import Outcome
from agent_routing.v1.agent_pb2 import AGENT_KIND_HUMAN
from agent_routing.v1.routing_service_pb2 import (
    KEEP_TURN_STATUS_KEPT,
    StatusResponse,
    WaitingConversation,
)
from agent_routing.v1.turn_pb2 import OUTCOME_STATUS_STORED_ONLY, TURN_OUTCOME_SAID, Turn
from routing_service.cli.failure import EXIT_FAILED, NAME_YOURSELF, CommandFailed, is_nameless
from routing_service.cli.screen import count_of, time_text
from routing_service.cli.typed_lines import TypedLines
from routing_service.ids import new_uuid7
from routing_service.telemetry.terminal_text import seen

LOOK_S: Final = 1.0
"""Between two looks at the service: a person does not see the difference to at once."""

READ_TURNS: Final = 50
"""Turns that are shown of a conversation: what a person reads before answering."""

WAITING_MAX: Final = 100
"""Conversations that are listed, the longest waiting first; a person works on those."""

HELP: Final = """\
/list            what waits, the longest waiting first
/open N          claim and read a conversation, by its number in the list or its session id
TEXT             answer; between the user's messages, say something
/ask TEXT        answer with a question: the user's next message is its answer
/say TEXT        say something, and leave the user's message open
/note TEXT       note something for colleagues; the user never sees it
/done [TEXT]     end your part, with a last answer
/give AGENT [TEXT]  hand the conversation to another agent
/take [REASON]   take the conversation over from the person who has claimed it; asks first
/release         give the claim up; the conversation waits for others
/quit            leave; your claims stay"""


class OpenDesk:
    """What one person sees and does. Both threads hold the lock while they use the client."""

    def __init__(self, client: Admin, agent_id: str, who: str, lines: TypedLines) -> None:
        """Work for an agent of kind human. who: the person, "" where the credential says it."""
        self._client = client
        self._agent_id = agent_id
        self._who = who
        self._lines = lines
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listed: dict[str, WaitingConversation] = {}
        self._order: list[str] = []
        self._has_more = self._is_away = False
        # Of the open conversation; "" while none is open. claimant: who has it. me: who the
        # service says that this person is.
        self._session_id = self._user_id = self._claimant = self._me = ""
        self._revision = 0
        self._shown: set[str] = set()
        # The id under which a text may have been sent already, by command and text: sent again with
        # it, the text is not shown twice.
        self._sent: dict[str, str] = {}
        self._complaint = ""
        # From whom /take would take the conversation over, and why, while the person is asked.
        self._asked: tuple[str, str] | None = None
        # A text for which a conversation has to be opened or taken over first, and the session that
        # was open. It comes back as soon as it can be sent.
        self._held = ("", "")
        self._has_to_wait = False

    def run(self) -> bool:
        """Do what the person types until /quit or the end of the input; say if all was done.

        Raises RoutingError if the first look is refused, such as for a missing scope; CommandFailed
        for an agent without people.
        """
        with self._lock:
            self._check_agent()
            self._look_at_list(is_first=True)
        self._lines.show(Text("/open N begins, /help lists the commands", "dim"))
        looking = threading.Thread(target=self._look_on, name="desk", daemon=True)
        looking.start()
        went_well = True
        try:
            while (line := self._lines.ask(self._prompt())) is not None:
                if line.strip() == "/quit":
                    break
                if not self._do_or_keep(line.strip()):
                    went_well = False
            return went_well
        finally:
            self._stopping.set()
            looking.join()

    def _check_agent(self) -> None:
        """Refuse a name that is probably a slip; what waits for an agent of before can be read."""
        known = {agent.agent_id: agent for agent in self._client.list_agents().agents}
        people = [each.agent_id for each in known.values() if each.kind == AGENT_KIND_HUMAN]
        if self._agent_id in people or self._client.list_waiting_page(self._agent_id).entries:
            return
        what = "is not of kind human" if self._agent_id in known else "is not registered"
        raise CommandFailed(
            f'agent "{self._agent_id}" {what}; agents with people: {", ".join(people) or "none"}'
        )

    def _do_or_keep(self, line: str) -> bool:
        """Do one line; keep its text if it was not done, and offer a text that had to wait."""
        session_id, self._has_to_wait = self._session_id, False
        is_done = self._do(line)
        if not is_done and has_text(line):
            if self._has_to_wait:
                self._held = (session_id, line)
            else:
                self._lines.keep(line)
        elif self._held[1] and self._can_send_held():
            self._lines.keep(self._held[1])
            self._held = ("", "")
        return is_done

    def _can_send_held(self) -> bool:
        """Say whether the conversation for which the text was written can be answered now."""
        is_same = self._held[0] in ("", self._session_id)
        return bool(self._session_id) and is_same and self._claimant in ("", self._me)

    def _prompt(self) -> str:
        if self._asked:
            return f"take it over from {seen(self._asked[0])}? yes/no> "
        return f"{seen(self._session_id)}> " if self._session_id else "desk> "

    # --- What arrives ---------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                with self._lock:
                    self._look_at_list()
                    if self._session_id:
                        self._look_at_conversation()
            except (Unavailable, DeadlineExceeded) as error:
                self._note_failure(error)
            except RoutingError as error:
                # Such as an erased session, or a right that was withdrawn.
                self._complain(error.message)
            except Exception as error:  # noqa: BLE001 - a screen that stands still looks like a calm day
                self._complain(f"this screen could not be brought up to date: {error!r}")
            else:
                self._complaint = ""
                if self._is_away:
                    self._is_away = False
                    self._lines.show(Text("the server answers again", "green"))

    def _complain(self, why: str) -> None:
        """Say once why nothing new is shown."""
        if why != self._complaint:
            self._complaint = why
            self._lines.show(Text(seen(why), "red"))

    def _note_failure(self, error: RoutingError) -> None:
        if not self._is_away:
            self._is_away = True
            what = f"the server does not answer: {seen(error.message)}"
            self._lines.show(Text(f"{what}; what you type stays", "red"))

    def _look_at_list(self, *, is_first: bool = False) -> None:
        """Tell what has come and what has gone."""
        page = self._client.list_waiting_page(self._agent_id, page_size=WAITING_MAX)
        self._has_more = bool(page.next_page_token)
        now = {entry.session_id: entry for entry in page.entries}
        if is_first:
            self._listed, self._order = now, list(now)
            self._list()
            return
        for session_id, entry in now.items():
            if session_id not in self._listed and session_id != self._session_id:
                if session_id not in self._order:
                    self._order.append(session_id)
                self._lines.show(Text("waits: ", "bold").append_text(self._entry(entry)))
        for session_id in self._listed.keys() - now.keys():
            if session_id != self._session_id:
                self._lines.show(Text(f"waits no longer: {seen(session_id)}", "dim"))
        self._listed = now

    def _look_at_conversation(self) -> None:
        """Tell what has happened in the open conversation since the last look."""
        status = self._client.status(self._session_id)
        if status.revision == self._revision:
            return
        self._revision = status.revision
        self._show_turns()
        claimant = status.claim.claimant
        if claimant != self._claimant:
            self._claimant = claimant
            if claimant not in ("", self._me):
                self._lines.show(Text(f"{seen(claimant)} has taken the conversation over", "red"))
            elif not claimant:
                self._lines.show(Text("no one has claimed the conversation now", "yellow"))
        if not self._is_here(status):
            agent = status.active_agent.display_name or status.next_agent.display_name
            session_id = self._session_id
            self._forget()
            gone = f"{seen(session_id)} has left the desk: it is with {seen(agent)} now"
            self._lines.show(Text(gone, "yellow"))

    def _is_here(self, status: StatusResponse) -> bool:
        return status.active_agent.agent_id == self._agent_id or bool(
            open_request(status, self._agent_id)
        )

    def _show_turns(self) -> None:
        """Show the turns, and parts of turns, that were not shown before."""
        page = self._client.list_turns_page(
            self._session_id, agent_id=self._agent_id, order="NEWEST_FIRST", page_size=READ_TURNS
        )
        for turn in reversed(page.turns):
            self._show_part(f"user {turn.request_id}", self._user_id or "user", turn.user_text)
            self._show_part(f"agent {turn.request_id}", speaker_of(turn), turn.agent_text)

    def _show_part(self, key: str, who: str, text: str) -> None:
        if text and key not in self._shown:
            self._shown.add(key)
            style = "bold" if key.startswith("user") else "cyan"
            self._lines.show(Text(f"{seen(who)}: ", style).append(seen(text), "default"))

    # --- What the person does -------------------------------------------------------------------

    def _do(self, line: str) -> bool:
        """Do one line; say whether it was done."""
        if self._asked and (answered := self._answer_question(line)) is not None:
            return answered
        if not line:
            return True
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if not line.startswith("/"):
            name, rest = "/answer", line
        act = self._acts().get(name)
        if act is None:
            self._lines.show(Text(f"there is no command {seen(name)}; /help lists them", "red"))
            return False
        return self._call(lambda: act(rest), is_reading=name == "/open")

    def _answer_question(self, line: str) -> bool | None:
        """Take the conversation over after a yes; None if the line is something else to do."""
        (claimant, reason), self._asked = self._asked or ("", ""), None
        if line.lower() not in {"y", "yes"}:
            self._lines.show(Text(f"{seen(claimant)} keeps it", "yellow"))
            return True if line.lower() in {"", "n", "no"} else None
        # If another person has it by now, that person is named first.
        if claimant != self._claimant:
            return self._call(lambda: self._take(reason))
        return self._call(lambda: self._claim(take_over=True, reason=reason))

    def _call(self, act: Callable[[], bool], *, is_reading: bool = False) -> bool:
        """Do what needs the service; say whether it was done, and show why not.

        is_reading: it is done also if another person has claimed the conversation.
        """
        try:
            with self._lock:
                return act()
        except Claimed as error:
            # A colleague was faster; what the service names is who has it.
            self._claimant = error.metadata.get("claimant", self._claimant)
            return self._is_mine() or is_reading
        except (Unavailable, DeadlineExceeded) as error:
            # It may have been sent: its id stays.
            self._note_failure(error)
            return False
        except RoutingError as error:
            why = NAME_YOURSELF if is_nameless(error) else error.message
            self._lines.show(Text(seen(why), "red"))
        except ValueError as error:  # Of a value that no request can carry.
            self._lines.show(Text(seen(str(error)), "red"))
        self._sent = {}
        return False

    def _acts(self) -> dict[str, Callable[[str], bool]]:
        return {
            "/list": lambda _: self._list(),
            "/open": self._open,
            "/answer": lambda text: self._answer(text, outcomes.proceed()),
            "/ask": lambda text: self._answer(text, outcomes.follow_up()),
            "/say": self._say,
            "/note": self._note,
            "/done": lambda text: self._answer(text, outcomes.complete(), needs_text=False),
            "/give": self._give,
            "/take": self._take,
            "/release": lambda _: self._release(),
            "/help": lambda _: self._help(),
        }

    def _help(self) -> bool:
        self._lines.show(HELP)
        return True

    def _list(self) -> bool:
        if not self._listed:
            self._lines.show("Nothing waits.")
        # A number stays with its conversation, so that no one opens another one by mistake.
        for session_id, entry in self._listed.items():
            if session_id not in self._order:
                self._order.append(session_id)
            self._lines.show(self._entry(entry))
        if self._has_more:
            self._lines.show(Text("more wait; these have waited longest", "dim"))
        return True

    def _entry(self, entry: WaitingConversation) -> Text:
        number = self._order.index(entry.session_id) + 1
        last = entry.open_requests[-1] if entry.open_requests else None
        line = Text(f"{number}. {seen(entry.session_id)} ", "bold")
        line.append(f"{seen(entry.user_id)}, since {time_text(entry.dispatch_time)}", "dim")
        if entry.claim.claimant:
            line.append(f", claimed by {seen(entry.claim.claimant)}", "yellow")
        return line.append(f": {seen(last.text) if last else ''}", "default")

    def _open(self, wanted: str) -> bool:
        """Claim a conversation and show it."""
        if wanted.isdecimal() and 0 < int(wanted) <= len(self._order):
            wanted = self._order[int(wanted) - 1]
        if not wanted:
            self._lines.show(Text("which one? /open 1", "red"))
            return False
        status = self._client.status(wanted)
        if not self._is_here(status):
            self._lines.show(Text(f'nothing of "{seen(wanted)}" waits here; /list', "red"))
            return True
        self._forget()
        self._session_id, self._user_id = wanted, status.owner
        self._revision, self._claimant = status.revision, status.claim.claimant
        for dispatch in status.open_requests:
            if dispatch.agent.agent_id == self._agent_id and dispatch.handoff.reason:
                reason = f"handed over: {seen(dispatch.handoff.reason)}"
                self._lines.show(Text(reason, "dim"))
        self._show_turns()
        notes = self._client.list_notes(wanted, agent_id=self._agent_id).notes
        if notes:
            self._lines.show(Text(count_of(len(notes), "note"), "dim"))
        for each in notes:
            who = Text(f"{seen(each.author)}: ", "yellow")
            self._lines.show(who.append(seen(each.text), "default"))
        # If another person has it, it can be read all the same.
        return self._claim(take_over=False, reason="")

    def _claim(self, *, take_over: bool, reason: str) -> bool:
        answer = self._client.claim_turn(
            self._session_id,
            self._agent_id,
            claimant=self._who,
            take_over=take_over,
            reason=reason,
        )
        self._me = self._claimant = answer.claim.claimant
        taken = f", taken over from {seen(answer.taken_from)}" if answer.taken_from else ""
        until = time_text(answer.claim.expire_time)
        self._lines.show(Text(f"claimed by {seen(self._me)}{taken}, until {until}", "green"))
        return True

    def _take(self, reason: str) -> bool:
        if not self._has_open():
            return False
        if self._claimant in ("", self._me):
            return self._claim(take_over=False, reason="")
        if not self._lines.is_terminal:
            # No one is there to be asked.
            return self._claim(take_over=True, reason=reason)
        self._asked = (self._claimant, reason)
        return True

    def _answer(self, text: str, outcome: Outcome, *, needs_text: bool = True) -> bool:
        """Answer what the user wrote, or say something where nothing waits."""
        if not (self._has_open() and self._is_mine()):
            return False
        if needs_text and not self._has_text(text):
            return False
        kind = f"{outcome} {text}"
        request_id = self._sent.get(kind) or open_request(
            self._client.status(self._session_id), self._agent_id
        )
        if not request_id:
            if outcome == outcomes.proceed():
                return self._say(text)
            what = "the user has written nothing since your answer; with the next message you can "
            self._lines.show(Text(f"{what}do this, and /release leaves it to others", "red"))
            return False
        self._sent = {kind: request_id}
        answer = self._client.complete_turn(
            self._session_id, request_id, self._agent_id, outcome, text=text
        )
        self._sent = {}
        self._shown.add(f"agent {request_id}")
        for verdict in answer.verdicts:
            if not verdict.allowed:
                self._lines.show(Text(f"refused: {seen(verdict.detail)}", "red"))
        if answer.outcome_status == OUTCOME_STATUS_STORED_ONLY:
            late = "kept in the history only: the conversation had left the desk before"
            self._lines.show(Text(late, "red"))
        if answer.active_agent.agent_id != self._agent_id:
            agent = answer.active_agent.display_name or "the home agent"
            session_id = self._session_id
            self._forget()
            self._lines.show(Text(f"{seen(session_id)} is with {seen(agent)} now", "green"))
        return True

    def _give(self, rest: str) -> bool:
        agent_id, _, text = rest.partition(" ")
        if not agent_id:
            self._lines.show(Text("to which agent? /give AGENT TEXT", "red"))
            return False
        return self._answer(text.strip(), outcomes.handoff(agent_id), needs_text=False)

    def _say(self, text: str) -> bool:
        if not (self._has_open() and self._is_mine() and self._has_text(text)):
            return False
        status = self._client.status(self._session_id)
        request_id = open_request(status, self._agent_id)
        message_id = self._sent.get(f"say {text}") or new_uuid7()
        self._sent = {f"say {text}": message_id}
        answer = self._client.say(
            text,
            session_id=self._session_id,
            agent_id=self._agent_id,
            request_id=request_id,
            task_id="" if request_id else status.task.task_id,
            message_id=message_id,
        )
        self._sent = {}
        if answer.status == KEEP_TURN_STATUS_KEPT:
            self._shown.add(f"agent {message_id}")
            return True
        self._lines.show(Text("not said: the conversation is with others by now", "red"))
        return False

    def _note(self, text: str) -> bool:
        if not (self._has_open() and self._has_text(text)):
            return False
        self._client.add_note(self._session_id, text, agent_id=self._agent_id, author=self._who)
        self._lines.show(Text("noted", "green"))
        return True

    def _release(self) -> bool:
        if not self._has_open():
            return False
        self._client.release_turn(self._session_id, self._agent_id, claimant=self._who)
        self._lines.show(Text(f"released: {seen(self._session_id)}", "green"))
        self._forget()
        return True

    def _has_open(self) -> bool:
        if not self._session_id:
            self._has_to_wait = True
            self._lines.show(Text("no conversation is open; /open N opens one", "red"))
        return bool(self._session_id)

    def _is_mine(self) -> bool:
        """Without sign-in the service cannot refuse another person's answer."""
        if self._claimant not in ("", self._me):
            self._has_to_wait = True
            who = f"{seen(self._claimant)} has claimed it; /take takes it over"
            self._lines.show(Text(who, "red"))
            return False
        return True

    def _has_text(self, text: str) -> bool:
        if not text:
            self._lines.show(Text("write the text after the command", "red"))
        return bool(text)

    def _forget(self) -> None:
        """Close the conversation on this screen."""
        self._session_id = self._user_id = self._claimant = self._me = ""
        self._revision, self._asked = 0, None
        self._shown, self._sent = set(), {}


def has_text(line: str) -> bool:
    """Return whether a line has a text that a person would not like to type again."""
    name, _, rest = line.partition(" ")
    return bool(line) and (not line.startswith("/") or bool(rest.strip() and name != "/open"))


def open_request(status: StatusResponse, agent_id: str) -> str:
    """Return the newest request that waits for an agent's people, "" for none."""
    held = [r.request_id for r in status.open_requests if r.agent.agent_id == agent_id]
    return held[-1] if held else ""


def speaker_of(turn: Turn) -> str:
    """Return who spoke, marked where the turn went on."""
    return f"{turn.agent_id}{' (said)' if turn.outcome == TURN_OUTCOME_SAID else ''}"


def run_desk(client: Admin, agent_id: str, who: str) -> None:
    """Run the command until the person leaves.

    Raises RoutingError; typer.Exit if a line of a pipe could not be done.
    """
    lines = TypedLines()
    with suppress(KeyboardInterrupt):
        if not OpenDesk(client, agent_id, who, lines).run() and not lines.is_terminal:
            raise typer.Exit(EXIT_FAILED)
