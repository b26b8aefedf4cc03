"""The figures as they are stored: settings, each with a version and the step that it contains.

A value of a newer release is SchemaTooNew, not damage, and is never overwritten.

All of them refer to places in one store's log, and are folded again if the data moves to another
store. For each tenant, and for ALL_TENANTS with all tenants together, after the prefix:
fold               of ALL_TENANTS alone: the Head
tenant             of each tenant: its Directory
stuck              of each tenant: its StuckWindow, if the registry asks for one
h/HOUR             figures of an hour, all channels; HOUR counts from 1970
h/HOUR/CHANNEL     figures of an hour and a channel
d/DAY[/CHANNEL]    the same of a day, so that a year is 365 reads
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec

from routing_service.analytics.counts import CHANNELS_MAX, NEVER, Counts
from routing_service.analytics.stuck_windows import StuckWindow, WindowDelta
from routing_service.storage.store import OWN_SETTING_PREFIX, SchemaTooNew, StoreCorrupt

ALL_TENANTS: Final = "*"
PREFIX: Final = f"{OWN_SETTING_PREFIX}analytics/"
HEAD: Final = f"{PREFIX}fold"
DIRECTORY: Final = f"{PREFIX}tenant"
STUCK_WINDOW: Final = f"{PREFIX}stuck"
HOURS_PER_DAY: Final = 24

VERSION: Final = 1

RECOUNT_VERSION: Final = 2
"""Of a head that asks for a recount. Servers of the release before wait until a newer one has done
it: SchemaTooNew."""

RECOUNT_COMMAND: Final = "agent-routing stats --recount --store URL"

VALUE_BYTES_MAX: Final = 60 * 1024
"""The largest value: the limit of every store for a setting, less some room."""

RECENT_SESSIONS_MAX: Final = 1_024
"""Sessions whose last counted revision is remembered, so that a change which a store delivers twice
is counted once. Stores repeat recent changes: a page, or the seconds before a crash."""

_LEVEL: Final = 1
_COMPRESSED: Final = b"z"
"""The first byte; earlier releases wrote what did not get smaller with another one, plain."""


class StatsDamaged(StoreCorrupt):
    """Stored statistics cannot be read. Routing goes on; RECOUNT_COMMAND counts them again."""

    def __init__(self, where: str) -> None:
        """Name the setting."""
        super().__init__(
            f'the stored statistics are damaged (setting "{where}"); '
            f"count them again: {RECOUNT_COMMAND}"
        )
        self.where = where


class Delta(msgspec.Struct, omit_defaults=True):
    """A step's addition to one setting of figures. cursor: the place in the log before the step."""

    tenant: str
    name: str
    counts: Counts
    cursor: bytes = b""


class DirectoryDelta(msgspec.Struct, omit_defaults=True):
    """A step's addition to a tenant's directory. audit: None = unchanged."""

    tenant: str
    first_hour: int = NEVER
    last_hour: int = NEVER
    channels: list[str] = msgspec.field(default_factory=list)
    audit: bytes | None = None


class Head(msgspec.Struct, omit_defaults=True):
    """The fold's progress and its last step's additions, written together by compare-and-set.

    seq: of the last step. cursor: the place in the log after it. as_of_us: the time of the last
    change it took. recent: for a session's hash the revision and time of its last counted change,
    the latest last. deltas, directories, windows: the step's additions; a setting that contains
    them has the step's seq, so that adding them again changes nothing. recount: all figures with a
    lower seq are to be cleared before the next step.
    """

    seq: int = 0
    cursor: bytes = b""
    as_of_us: int = 0
    recent: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    deltas: list[Delta] = msgspec.field(default_factory=list)
    directories: list[DirectoryDelta] = msgspec.field(default_factory=list)
    recount: bool = False
    windows: list[WindowDelta] = msgspec.field(default_factory=list)


class Figures(msgspec.Struct, omit_defaults=True):
    """A setting of figures. seq: of the last step that it contains.

    cursor: of ALL_TENANTS alone: a place in the log before all changes of this hour or day; b"" =
    the beginning, or a release before this one counted first.
    """

    seq: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    cursor: bytes = b""


class Directory(msgspec.Struct, omit_defaults=True):
    """A tenant's stored figures. audit: the place in its audit after the counted entries."""

    seq: int = 0
    first_hour: int = NEVER
    last_hour: int = NEVER
    channels: list[str] = msgspec.field(default_factory=list)
    audit: bytes = b""

    def add(self, delta: DirectoryDelta) -> None:
        """Add a step's findings."""
        if delta.first_hour != NEVER:
            known = self.first_hour != NEVER
            self.first_hour = min(self.first_hour, delta.first_hour) if known else delta.first_hour
            self.last_hour = max(self.last_hour, delta.last_hour)
        for channel in delta.channels:
            if channel not in self.channels and len(self.channels) < CHANNELS_MAX:
                self.channels.append(channel)
        if delta.audit is not None:
            self.audit = delta.audit


Stored = TypeVar("Stored", Head, Figures, Directory, StuckWindow)

_NEWEST: Final[dict[type, int]] = {Head: RECOUNT_VERSION}
"""The newest version that this release reads, where it is not VERSION."""


def hour_name(hour: int, channel: str) -> str:
    """Return the name of an hour's figures. channel: "" = all."""
    return f"{PREFIX}h/{hour}/{channel}" if channel else f"{PREFIX}h/{hour}"


def day_name(day: int, channel: str) -> str:
    """Return the name of a day's figures. channel: "" = all."""
    return f"{PREFIX}d/{day}/{channel}" if channel else f"{PREFIX}d/{day}"


def encode(value: Head | Directory | StuckWindow) -> bytes:
    """Return the stored form. It may be too large for a store: see VALUE_BYTES_MAX."""
    is_recount = isinstance(value, Head) and value.recount
    version = RECOUNT_VERSION if is_recount else VERSION
    return _COMPRESSED + zlib.compress(msgspec.msgpack.encode((version, value)), _LEVEL)


def encode_figures(figures: Figures) -> bytes:
    """Return the stored form, with the rarest rows merged until it is small enough to store."""
    while True:
        data = msgspec.msgpack.encode((VERSION, figures))
        packed = _COMPRESSED + zlib.compress(data, _LEVEL)
        if len(packed) <= VALUE_BYTES_MAX:
            return packed
        figures.counts.coarsen()


def decode(kind: type[Stored], data: bytes | None, where: str) -> Stored:
    """Return the stored value, or an empty one if none is stored.

    Raises SchemaTooNew, StatsDamaged.
    """
    if data is None:
        return kind()
    try:
        plain = zlib.decompress(data[1:]) if data[:1] == _COMPRESSED else data[1:]
        version, value = msgspec.msgpack.decode(plain, type=tuple[int, msgspec.Raw])
        supported = _NEWEST.get(kind, VERSION)
        if version > supported:
            raise SchemaTooNew(where, version, supported)
        return msgspec.msgpack.decode(value, type=kind)
    except (msgspec.DecodeError, zlib.error) as error:
        raise StatsDamaged(where) from error
