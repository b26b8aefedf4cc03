"""Who got each agent and who left it by a command, over the last minutes of one tenant.

The fold adds to it while the registry asks for an automatic off. It is one setting per tenant with
WINDOW_PARTS parts, so that it slides; users are bits of a sketch, so that none can be named.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

WINDOW_PARTS: Final = 5
"""Parts of a window: it slides by a fifth of its length."""

SKETCH_BITS: Final = 512
"""Bits of the sketch of users. Two users may share a bit, so bits set are at most the users."""

AGENTS_MAX: Final = 64
"""Agents in one part; further ones are not watched. With all of them a setting has some 50 KB."""

_SKETCH_BYTES: Final = SKETCH_BITS // 8


def user_bit(name: str) -> int:
    """Return the bit of a user in the sketches."""
    return zlib.crc32(name.encode()) % SKETCH_BITS


class AgentWindow(msgspec.Struct, omit_defaults=True):
    """One agent's figures in a part. users, stuck_users: sketches, b"" = no user."""

    turns: int = 0
    activations: int = 0
    stuck: int = 0
    users: bytes = b""
    stuck_users: bytes = b""

    def activate(self, bit: int) -> None:
        """Count that a user got the agent."""
        self.activations += 1
        self.users = _with_bit(self.users, bit)

    def leave_stuck(self, bit: int) -> None:
        """Count that a user left the agent soon, by a command."""
        self.stuck += 1
        self.stuck_users = _with_bit(self.stuck_users, bit)

    def add(self, other: AgentWindow) -> None:
        """Add the figures of another part, or of other changes."""
        self.turns += other.turns
        self.activations += other.activations
        self.stuck += other.stuck
        self.users = _united(self.users, other.users)
        self.stuck_users = _united(self.stuck_users, other.stuck_users)

    @property
    def users_min(self) -> int:
        """At least so many different users got the agent."""
        return int.from_bytes(self.users).bit_count()

    @property
    def stuck_share(self) -> float:
        """The stuck share, by times and by different users: the smaller one counts.

        One user who comes and goes all day raises the first and not the second. In a crowd that
        fills the sketches the second is too high, and the first counts.
        """
        if not self.activations or not self.users_min:
            return 0.0
        stuck_users = int.from_bytes(self.stuck_users).bit_count()
        return min(self.stuck / self.activations, stuck_users / self.users_min, 1.0)


AgentWindows = dict[str, AgentWindow]


class WindowDelta(msgspec.Struct, omit_defaults=True):
    """A step's addition to a tenant's window. parts: by number since 1970."""

    tenant: str
    part_us: int
    parts: dict[int, AgentWindows]


class StuckWindow(msgspec.Struct, omit_defaults=True):
    """A tenant's window as it is stored.

    seq: of the last step that it contains. alarmed: agents that were switched off, and whose share
    has not been below the bound since.
    """

    seq: int = 0
    part_us: int = 0
    parts: dict[int, AgentWindows] = msgspec.field(default_factory=dict)
    alarmed: list[str] = msgspec.field(default_factory=list)

    def add(self, delta: WindowDelta, now_us: int) -> None:
        """Add a step's figures, and forget what is older than the window."""
        if delta.part_us != self.part_us:
            # The registry has another window now: it begins again.
            self.part_us, self.parts = delta.part_us, {}
        for number, agents in delta.parts.items():
            _add_agents(self.parts.setdefault(number, {}), agents)
        last = now_us // self.part_us
        # Another replica's clock may be ahead: the part after this one is kept.
        for number in [n for n in self.parts if not last - WINDOW_PARTS < n <= last + 1]:
            del self.parts[number]

    def since(self, start_us: int, now_us: int) -> AgentWindows:
        """Return the sums of the parts that began at start_us or later, and are not over."""
        found: AgentWindows = {}
        if not self.part_us:
            return found
        last = now_us // self.part_us
        for number, agents in self.parts.items():
            if last - WINDOW_PARTS < number <= last and number * self.part_us >= start_us:
                _add_agents(found, agents)
        return found


def _add_agents(table: AgentWindows, other: Mapping[str, AgentWindow]) -> None:
    for agent_id, window in other.items():
        row = table.get(agent_id)
        if row is None:
            if len(table) >= AGENTS_MAX:
                continue
            row = table[agent_id] = AgentWindow()
        row.add(window)


def _with_bit(sketch: bytes, bit: int) -> bytes:
    return _united(sketch, (1 << bit).to_bytes(_SKETCH_BYTES))


def _united(one: bytes, other: bytes) -> bytes:
    if not one or not other:
        return one or other
    return (int.from_bytes(one) | int.from_bytes(other)).to_bytes(_SKETCH_BYTES)
