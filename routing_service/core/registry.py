"""The agents a service routes between, and the limits of its sessions.

A registry is one immutable value that decisions are made against. ``routing_service.registry``
reads it from a file.

Rule: a ``Registry`` that exists is coherent. Its home agent exists and is always available, its
names are unambiguous and its limits are within their bounds; otherwise its constructor raises
``ValueError``. What depends on a session or a user is decided elsewhere.
"""

from __future__ import annotations

import enum
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from routing_service.core.channel_profiles import ChannelProfiles, ReplyStyle, fold_channel
from routing_service.core.vocabulary import WhenUnsure

if TYPE_CHECKING:
    from collections.abc import Mapping

# A message may pass through this many agents at most. More is a loop that no user waits for; the
# default leaves room for supervisor -> specialist -> interlude -> back -> assessor.
HOPS_PER_MESSAGE_MIN = 1
HOPS_PER_MESSAGE_MAX = 20
HOPS_PER_MESSAGE_DEFAULT = 5

# Frames on the return stack. They are part of the session's state, which stays under 8 KiB with the
# longest ids there are, hence the ceiling (tests/unit/core/test_bounds.py measures it).
RETURN_DEPTH_MIN = 1
RETURN_DEPTH_MAX = 8
RETURN_DEPTH_DEFAULT = 8

# Turns of one session waiting for an answer. Open turns are the largest part of the bounded state.
OPEN_TURNS_MIN = 1
OPEN_TURNS_MAX = 16
OPEN_TURNS_DEFAULT = 16

# Times are whole microseconds: integers compare and replay alike everywhere, and are the finest
# unit that a protobuf Timestamp survives in Python.
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

TURN_TIMEOUT_MIN_US = SECOND_US
TURN_TIMEOUT_MAX_US = DAY_US
TURN_TIMEOUT_DEFAULT_US = 15 * MINUTE_US
PARKED_TIMEOUT_MIN_US = SECOND_US
PARKED_TIMEOUT_MAX_US = 365 * DAY_US
PARKED_TIMEOUT_DEFAULT_US = 7 * DAY_US

# Of a claim, which ends though the person has gone home, and of the wait for one.
CLAIM_TIMEOUT_MIN_US = SECOND_US
CLAIM_TIMEOUT_MAX_US = 30 * DAY_US
CLAIM_TIMEOUT_DEFAULT_US = 8 * HOUR_US

# A worker may extend its turn until this long after the dispatch: more is a worker that hangs.
TURN_EXTENDED_MAX_US = DAY_US

# The automatic off: long enough for a deployment to show, short enough to help.
AUTO_OFF_WINDOW_MIN_US = MINUTE_US
AUTO_OFF_WINDOW_MAX_US = DAY_US
AUTO_OFF_WINDOW_DEFAULT_US = 15 * MINUTE_US
AUTO_OFF_TURNS_DEFAULT = 50
AUTO_OFF_USERS_DEFAULT = 10

# The share of messages that the supervisor is asked about: four calls in five are saved.
ASK_SHARE_DEFAULT = 0.2

# A year: no conversation that was idle for longer needs to be resumed.
IDLE_TIMEOUT_MIN_US = SECOND_US
IDLE_TIMEOUT_MAX_US = 365 * DAY_US

# Turns of an interlude before it returns by itself; 0 means that it never does.
TURNS_MAX_MAX = 1_000

# Decisions and suggestions name agents, and lists of agents travel in answers.
AGENTS_MAX = 512

# Words with another meaning in a place where an agent id may stand (on_complete), in any case.
RESERVED_AGENT_IDS = frozenset({"stay", "release", "return"})


class AgentKind(enum.Enum):
    """What an agent is: a router, a worker, one that runs next to the conversation, or people."""

    SUPERVISOR = "supervisor"
    SPECIALIST = "specialist"
    SYSTEM = "system"
    HUMAN = "human"


class Sticks(enum.Enum):
    """How long an agent keeps the conversation once it has it.

    SESSION: until it completes, hands over or is cleared. FOLLOW_UP: only while a question of its
    own is unanswered. NEVER: not at all, even when it asks.
    """

    SESSION = "session"
    FOLLOW_UP = "follow_up"
    NEVER = "never"


class OnComplete(enum.Enum):
    """What follows when an agent says that it is done; HOP names the next agent."""

    STAY = "stay"
    RELEASE = "release"
    RETURN = "return"
    HOP = "hop"


def fold_name(name: str) -> str:
    """Return the form under which ids and aliases are compared: any case, any composition."""
    return unicodedata.normalize("NFC", name.strip()).casefold()


def fold_locale(locale: str) -> str:
    """Return the form under which locales are compared: ``es_MX`` and ``ES-mx`` are one."""
    return locale.strip().replace("_", "-").lower()


def locale_chain(locale: str) -> tuple[str, ...]:
    """Return a locale and its parents, most specific first: zh-Hant-TW → zh-hant-tw, zh-hant, zh.

    Folded, see fold_locale(). Source: RFC 4647, section 3.4 (lookup).
    """
    tag = fold_locale(locale)
    chain: list[str] = []
    while tag:
        chain.append(tag)
        tag = tag.rpartition("-")[0]
        while tag[-2:-1] == "-":  # A single letter only announces what follows it.
            tag = tag[:-2]
    return tuple(chain)


def localised(texts: Mapping[str, str], locale: str, default_locale: str) -> str:
    """Return the text for a locale, its parents, the default locale, or else the first one.

    "" if there is no text at all; the caller decides what to show then.
    """
    if not texts:
        return ""
    by_tag = {fold_locale(tag): text for tag, text in texts.items()}
    for tag in (*locale_chain(locale), *locale_chain(default_locale)):
        if tag in by_tag:
            return by_tag[tag]
    return next(iter(texts.values()))


@dataclass(frozen=True, slots=True)
class AgentTopics:
    """How topics bring users to one agent, if that differs from the registry's defaults."""

    # "off" (never), "suggest" or "auto"; "" = as the registry's.
    mode: str = ""
    # 0-1; None = the registry's.
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent as the registry describes it. Nothing here changes while a session runs."""

    agent_id: str
    # Other names for the same agent: what frameworks call it. Never shown to users.
    aliases: tuple[str, ...] = ()
    # Locale -> what users see. Read it through display_name().
    name: Mapping[str, str] = field(default_factory=dict)
    # Folded language -> the article before its name; "" = none. A language that is not here: as
    # routing_service.texts.agent_names finds it.
    article: Mapping[str, str] = field(default_factory=dict)
    # Locale -> what the agent is for: read by supervisors, transfer tools and topic detection.
    description: Mapping[str, str] = field(default_factory=dict)
    # Messages that this agent is for.
    examples: tuple[str, ...] = ()
    kind: AgentKind = AgentKind.SPECIALIST
    sticks: Sticks = Sticks.SESSION
    # In mid-task neither a user's selection nor a change of topic takes the session from it.
    owns_session: bool = False
    # The agents it may hand to; None = every specialist.
    handoff_to: frozenset[str] | None = None
    # The agent that hands to it is put on the return stack and gets the conversation back.
    receives_as_interlude: bool = False
    # As an interlude it returns by itself after so many of its turns; 0 = it does not.
    turns_max: int = 0
    on_complete: OnComplete = OnComplete.RELEASE
    # The next agent where on_complete is HOP, else empty.
    on_complete_agent_id: str = ""
    # Locale -> what the user sees when the completion hops.
    on_complete_message: Mapping[str, str] = field(default_factory=dict)
    # Entitlements, all of which a user must have.
    requires: frozenset[str] = frozenset()
    # Channels on which it may be reached; None = all.
    channels: frozenset[str] | None = None
    # Whether channels has folded names, which users' channels match in any case.
    folds_channels: bool = False
    # Why it is not available, in the registry's own words: the rule that refuses (enabled,
    # entitled, channel) -> locale -> text.
    unavailable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Overrides the registry's idle timeout for the time it is active; None = the registry's.
    idle_timeout_us: int | None = None
    # Users see input and output of the steps that it reports, and not only their names.
    shows_steps: bool = False
    # How long a turn may wait for its answer; None = the registry's.
    turn_timeout_us: int | None = None
    # How long a person's claim lasts; None = CLAIM_TIMEOUT_DEFAULT_US.
    claim_timeout_us: int | None = None
    # How long a message may wait until a person claims it; None = for as long as it takes.
    unclaimed_timeout_us: int | None = None
    # Locale -> what the user sees when that time has passed.
    unclaimed_message: Mapping[str, str] = field(default_factory=dict)
    # A marker such as [HANDOFF_TO:x] in its text is a handoff and is cut out.
    markers: bool = False
    # An answer that ends in a question to the user locks softly, though its outcome is a proceed.
    asks_in_prose: bool = False
    # Its turns wait in its inbox for a worker, instead of being carried to it by the caller.
    has_inbox: bool = False
    # Users may choose it by name.
    user_selectable: bool = False
    enabled: bool = True
    topics: AgentTopics = AgentTopics()
    # For frontends; the service only passes them on.
    icon: str = ""
    color: str = ""
    # Whether more counts of its answers than their outcome: markers, or a person gives them.
    answers_are_read: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for combinations without a meaning."""
        is_human = self.kind is AgentKind.HUMAN
        object.__setattr__(self, "answers_are_read", self.markers or is_human)
        if not self.agent_id:
            msg = "an agent needs a non-empty agent_id"
            raise ValueError(msg)
        if (self.on_complete is OnComplete.HOP) != bool(self.on_complete_agent_id):
            msg = (
                f"agent {self.agent_id!r}: on_complete {self.on_complete.value!r} does not go with "
                f"on_complete_agent_id {self.on_complete_agent_id!r}; HOP, and only HOP, names one"
            )
            raise ValueError(msg)
        if not 0 <= self.turns_max <= TURNS_MAX_MAX:
            msg = f"agent {self.agent_id!r}: turns_max {self.turns_max} is not 0..{TURNS_MAX_MAX}"
            raise ValueError(msg)
        for key, value_us, min_us, max_us in (
            ("idle_timeout_us", self.idle_timeout_us, IDLE_TIMEOUT_MIN_US, IDLE_TIMEOUT_MAX_US),
            ("turn_timeout_us", self.turn_timeout_us, TURN_TIMEOUT_MIN_US, TURN_TIMEOUT_MAX_US),
            ("claim_timeout_us", self.claim_timeout_us, CLAIM_TIMEOUT_MIN_US, CLAIM_TIMEOUT_MAX_US),
            (
                "unclaimed_timeout_us",
                self.unclaimed_timeout_us,
                CLAIM_TIMEOUT_MIN_US,
                CLAIM_TIMEOUT_MAX_US,
            ),
        ):
            if value_us is not None:
                _check_range(f"agent {self.agent_id!r}: {key}", value_us, min_us, max_us)
        if is_human and not self.has_inbox:
            msg = f"agent {self.agent_id!r} is of kind human; its turns wait in an inbox"
            raise ValueError(msg)

    def is_on(self, channel: str) -> bool:
        """Say whether users of a channel may be with this agent."""
        if self.channels is None or channel in self.channels:
            return True
        return self.folds_channels and fold_channel(channel) in self.channels

    @property
    def never_locks(self) -> bool:
        """Whether the answer to its question may go to another agent."""
        return self.kind is AgentKind.SUPERVISOR or self.sticks is Sticks.NEVER

    def display_name(self, locale: str, default_locale: str) -> str:
        """Return this agent's name for users of a locale; its id if it has no name."""
        return localised(self.name, locale, default_locale) or self.agent_id

    def display_description(self, locale: str, default_locale: str) -> str:
        """Return what this agent is for, in a locale if the registry has it; may be empty."""
        return localised(self.description, locale, default_locale)

    def why_unavailable(self, rule: str, locale: str, default_locale: str) -> str:
        """Return the registry's own words for a rule that refuses this agent; "" for none."""
        return localised(self.unavailable.get(rule, {}), locale, default_locale)

    def completion_message(self, locale: str, default_locale: str) -> str:
        """Return what the user sees when this agent's completion hops on; may be empty."""
        return localised(self.on_complete_message, locale, default_locale)


class WhilePaused(enum.StrEnum):
    """What becomes of messages while a task waits for an approval.

    HOLD: the paused agent gets them. PARK: the task is parked and they begin another one.
    """

    HOLD = "hold"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one session. Times in microseconds."""

    hops_per_message: int = HOPS_PER_MESSAGE_DEFAULT
    return_depth: int = RETURN_DEPTH_DEFAULT
    open_turns: int = OPEN_TURNS_DEFAULT
    turn_timeout_us: int = TURN_TIMEOUT_DEFAULT_US
    # None = an active agent stays without a limit.
    idle_timeout_us: int | None = None
    # A parked task is cancelled after so long without a change.
    parked_timeout_us: int = PARKED_TIMEOUT_DEFAULT_US

    def __post_init__(self) -> None:
        """Refuse a limit outside its bounds."""
        _check_range(
            "hops_per_message", self.hops_per_message, HOPS_PER_MESSAGE_MIN, HOPS_PER_MESSAGE_MAX
        )
        _check_range("return_depth", self.return_depth, RETURN_DEPTH_MIN, RETURN_DEPTH_MAX)
        _check_range("open_turns", self.open_turns, OPEN_TURNS_MIN, OPEN_TURNS_MAX)
        _check_range(
            "turn_timeout_us", self.turn_timeout_us, TURN_TIMEOUT_MIN_US, TURN_TIMEOUT_MAX_US
        )
        _check_range(
            "parked_timeout_us",
            self.parked_timeout_us,
            PARKED_TIMEOUT_MIN_US,
            PARKED_TIMEOUT_MAX_US,
        )
        if self.idle_timeout_us is not None:
            _check_range(
                "idle_timeout_us", self.idle_timeout_us, IDLE_TIMEOUT_MIN_US, IDLE_TIMEOUT_MAX_US
            )


ANYONE: Final = "anyone"
OTHER_THAN_OWNER: Final = "other_than_owner"
ROLE_PREFIX: Final = "role:"

APPROVALS_NEEDED_MAX: Final = 8
"""The approvals of all but the last are kept in the state, which is bounded."""

APPROVAL_EXPIRES_MIN_US: Final = SECOND_US
APPROVAL_EXPIRES_MAX_US: Final = 365 * 24 * 60 * 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Who may decide an approval, how many have to approve, and by when.

    by: ANYONE whose credential reaches the session; OTHER_THAN_OWNER, who is not its user; or
    ROLE_PREFIX and a role or scope that the decider's own credential has.
    """

    by: str = ANYONE
    needs: int = 1
    # None = it waits for as long as its task.
    expires_us: int | None = None
    # What has expired counts as rejected; otherwise its task is cancelled.
    rejects_on_expiry: bool = False

    @property
    def names_deciders(self) -> bool:
        """Whether it can only be kept where callers sign in."""
        return self.by != ANYONE or self.needs > 1

    @property
    def is_plain(self) -> bool:
        """Whether it is what format 1 has: one decision by anyone, without a time."""
        return not self.names_deciders and self.expires_us is None


@dataclass(frozen=True, slots=True)
class AutoOff:
    """When stickiness is switched off for an agent that users leave again at once.

    stuck_share: of the times that it became active. turns_min, users_min: fewer in the window say
    nothing.
    """

    stuck_share: float
    window_us: int = AUTO_OFF_WINDOW_DEFAULT_US
    turns_min: int = AUTO_OFF_TURNS_DEFAULT
    users_min: int = AUTO_OFF_USERS_DEFAULT


@dataclass(frozen=True, slots=True)
class Topics:
    """Whether and how surely a message must be for another agent before anything is done."""

    # "off" (nothing is detected), "suggest" (offer the switch to the user) or "auto" (make it).
    mode: str = "off"
    # 0-1: the confidence from which a switch is considered.
    threshold: float = 0.8
    # 0-1: the confidence that overrides a lock; None = a lock always holds.
    lock_threshold: float | None = None
    # The agent for a message without an active agent, such as a session's first: "supervisor", or
    # "auto" for the agent that the message is about.
    first_message: str = "supervisor"
    # What becomes of a message whose sureness is below the bound in force.
    when_unsure: WhenUnsure = WhenUnsure.STAY
    # Whether a switch takes OPEN_TURN_THRESHOLD while the active agent works on a message.
    keeps_open_turns: bool = False
    # 0-1: the share of judged messages that the bound leaves unsure.
    ask_share: float = ASK_SHARE_DEFAULT
    # 0-1: the share of dispatches that is to be right, where what is asked about counts as right;
    # None = ask_share says how much is asked.
    right_wanted: float | None = None
    # What the logarithms of a verdict's probabilities are divided by, and what is added to that of
    # staying: learned from the registry's own conversations.
    temperature: float = 1.0
    stay_offset: float = 0.0
    # Whether messages are judged at all; derived, because every message asks.
    is_on: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive what every message asks for."""
        object.__setattr__(self, "is_on", self.mode != "off")

    @property
    def asks_when_unsure(self) -> bool:
        """Say whether an unsure verdict is treated differently from a sure one."""
        return self.when_unsure is not WhenUnsure.STAY

    def mode_to(self, agent: Agent) -> str:
        """Return how a message that is for an agent may bring its user there."""
        return agent.topics.mode or self.mode if self.is_on else "off"

    def threshold_to(self, agent: Agent) -> float:
        """Return the confidence from which a message is taken to be for an agent."""
        own = agent.topics.threshold
        return self.threshold if own is None else own


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Registry:
    """All agents and limits: the only thing besides state, command and time a decision reads."""

    # Any text of the operator's; decisions and events carry it.
    version: str
    # The supervisor, or in a swarm the default agent.
    home_agent_id: str
    # In the file's order, which is the order in which users see them.
    agents: Mapping[str, Agent]
    # No supervisor: home is a specialist that may stick.
    is_swarm: bool = False
    # Only the start value: the run-time switch lives in the store.
    stickiness_enabled: bool = True
    # None = only operators switch it off.
    auto_off: AutoOff | None = None
    default_locale: str = "en"
    limits: Limits = field(default_factory=Limits)
    # A second message while a turn is open is refused.
    double_text_rejects: bool = False
    # A second message waits while the turn of the first is in an inbox.
    double_text_queues: bool = False
    while_paused: WhilePaused = WhilePaused.HOLD
    # A message that names no task begins one, unless something in the open task waits for it.
    begins_tasks: bool = False
    # Names of slash commands, without the slash, that this registry switches off.
    disabled_commands: frozenset[str] = frozenset()
    # The registry's further words for slash commands, folded, with the command of each.
    command_words: Mapping[str, str] = field(default_factory=dict)
    topics: Topics = field(default_factory=Topics)
    approvals: ApprovalRule = field(default_factory=ApprovalRule)
    # How replies look on each channel, and how they are worded.
    channels: ChannelProfiles = field(default_factory=ChannelProfiles)
    replies: ReplyStyle = field(default_factory=ReplyStyle)
    # The names of files next to the registry's that belong to it: see examples_file, learned_file.
    further_files: tuple[str, ...] = ()
    # Folded id or alias -> id; derived, so it takes no part in comparisons.
    _ids_by_name: Mapping[str, str] = field(init=False, repr=False, compare=False)
    # Whether any agent is idle after some time; derived as well.
    has_idle_time_outs: bool = field(init=False, repr=False, compare=False)
    # Whether a second message is refused or waits; derived as well.
    is_one_at_a_time: bool = field(init=False, repr=False, compare=False)
    # Whether any agent has an inbox; derived as well.
    has_inboxes: bool = field(init=False, repr=False, compare=False)
    # The agents of kind human; derived as well.
    people: frozenset[str] = field(init=False, repr=False, compare=False)
    # Whether any of them gives back what nobody claims; derived as well.
    gives_back: bool = field(init=False, repr=False, compare=False)
    # The turn timeouts of agents that have their own; derived as well.
    turn_timeouts_us: Mapping[str, int] = field(init=False, repr=False, compare=False)
    # The shortest turn timeout of any agent, and the one of all agents, 0 where they differ.
    turn_timeout_least_us: int = field(init=False, repr=False, compare=False)
    turn_timeout_of_all_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the references that decisions rely on, and index the names."""
        for key, agent in self.agents.items():
            if key != agent.agent_id:
                msg = f"the agent under {key!r} has the id {agent.agent_id!r}; use the id as key"
                raise ValueError(msg)
        self._check_home()
        object.__setattr__(self, "_ids_by_name", _index_names(self.agents))
        idle = any(agent.idle_timeout_us for agent in self.agents.values())
        object.__setattr__(
            self, "has_idle_time_outs", idle or self.limits.idle_timeout_us is not None
        )
        inboxes = any(agent.has_inbox for agent in self.agents.values())
        object.__setattr__(self, "has_inboxes", inboxes)
        people = frozenset(a.agent_id for a in self.agents.values() if a.kind is AgentKind.HUMAN)
        object.__setattr__(self, "people", people)
        gives_back = any(agent.unclaimed_timeout_us for agent in self.agents.values())
        object.__setattr__(self, "gives_back", gives_back)
        one = self.double_text_rejects or self.double_text_queues
        object.__setattr__(self, "is_one_at_a_time", one)
        own = {a.agent_id: a.turn_timeout_us for a in self.agents.values() if a.turn_timeout_us}
        object.__setattr__(self, "turn_timeouts_us", own)
        usual_us = self.limits.turn_timeout_us
        object.__setattr__(self, "turn_timeout_least_us", min(usual_us, *own.values(), usual_us))
        # The turns of people have none.
        object.__setattr__(self, "turn_timeout_of_all_us", 0 if own or people else usual_us)
        for agent in self.agents.values():
            for target in (*(agent.handoff_to or ()), agent.on_complete_agent_id):
                if target and target not in self.agents:
                    msg = f"agent {agent.agent_id!r} refers to {target!r}, which is not registered"
                    raise ValueError(msg)

    def _check_home(self) -> None:
        """Refuse a home agent that is missing or that some user could not reach."""
        home = self.agents.get(self.home_agent_id)
        if home is None:
            known = ", ".join(self.agents) or "none"
            msg = f"home agent {self.home_agent_id!r} is not registered; registered agents: {known}"
            raise ValueError(msg)
        if not home.enabled or home.requires or home.channels is not None:
            msg = (
                f"home agent {home.agent_id!r} must be enabled, without requires and without "
                "channels: every user falls back to it"
            )
            raise ValueError(msg)
        expected = AgentKind.SPECIALIST if self.is_swarm else AgentKind.SUPERVISOR
        if home.kind is not expected:
            msg = f"home agent {home.agent_id!r} is a {home.kind.value}, not a {expected.value}"
            raise ValueError(msg)
        for agent in self.agents.values():
            if agent.kind is AgentKind.SUPERVISOR and agent is not home:
                msg = f"agent {agent.agent_id!r} is a second supervisor; only home may be one"
                raise ValueError(msg)

    @property
    def when_unsure(self) -> WhenUnsure:
        """Return what happens to an unsure message, also where a judge gave no answer."""
        when = self.topics.when_unsure
        if when is not WhenUnsure.JUDGE:
            return when
        return WhenUnsure.AGENT if self.is_swarm else WhenUnsure.SUPERVISOR

    @property
    def home(self) -> Agent:
        """The agent for every message while no agent is active."""
        return self.agents[self.home_agent_id]

    @property
    def is_all_inbox(self) -> bool:
        """Whether every agent has an inbox, so that no caller carries a turn."""
        return all(agent.has_inbox for agent in self.agents.values())

    def turn_timeout_us(self, agent_id: str) -> int:
        """Return how long a turn of an agent may wait for its answer."""
        return self.turn_timeouts_us.get(agent_id, self.limits.turn_timeout_us)

    @property
    def specialists(self) -> tuple[Agent, ...]:
        """The specialists, in the registry's order; disabled ones too."""
        return tuple(a for a in self.agents.values() if a.kind is AgentKind.SPECIALIST)

    @property
    def answering(self) -> tuple[Agent, ...]:
        """The agents that users can be with: specialists and people, in the registry's order."""
        kinds = (AgentKind.SPECIALIST, AgentKind.HUMAN)
        return tuple(a for a in self.agents.values() if a.kind in kinds)

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent with exactly this id. Aliases do not count: see resolve()."""
        return self.agents.get(agent_id)

    def resolve(self, name: str) -> str | None:
        """Return the id that an id or alias, in any case, stands for; None if it is unknown.

        A name in ASCII is written in ASCII: some letters of other alphabets fold to it, such as the
        long s to "s", and look like no other case of it.
        """
        if name in self.agents:
            return name
        folded = fold_name(name)
        if folded.isascii() and not name.strip().isascii():
            return None
        return self._ids_by_name.get(folded)


def _index_names(agents: Mapping[str, Agent]) -> Mapping[str, str]:
    ids_by_name: dict[str, str] = {}
    for agent in agents.values():
        for name in (agent.agent_id, *agent.aliases):
            owner = ids_by_name.setdefault(fold_name(name), agent.agent_id)
            if owner != agent.agent_id:
                msg = f"the name {name!r} stands for two agents: {owner!r} and {agent.agent_id!r}"
                raise ValueError(msg)
    return ids_by_name


def _check_range(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        msg = f"{name} {value} is out of bounds; use {minimum} to {maximum}"
        raise ValueError(msg)
