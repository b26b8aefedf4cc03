"""Topic models from other packages, found by the name in a setting.

Rule: an operator learns at the start what is missing and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from routing_service.topics.topic_detector import TopicModel

GROUP: Final = "agent_routing.topic_detectors"
"""The entry points by which installed packages offer models."""

SHIPPED: Final = "agent_routing.topics"
"""The entry points of agent-routing-topics: model, commands and report."""

INSTALL: Final = 'pip install "agent-routing-service[topics]"'
"""What installs agent-routing-topics next to the service."""


class DetectorUnavailable(Exception):
    """A topic model that cannot be had; the message says which, why and what to do."""


def is_shipped_installed() -> bool:
    """Say whether the distribution with the model that ships is installed."""
    return any(point.name == "model" for point in entry_points(group=SHIPPED))


def load_shipped(part: str) -> Any:
    """Return a part of agent-routing-topics: model, commands or report. Raises DetectorUnavailable.

    model: load_model(give_way, folder, *, waits, limit_s). commands: those of agent-routing topics.
    report: what check says of a registry's topics.
    """
    for point in entry_points(group=SHIPPED):
        if point.name == part:
            try:
                return point.load()
            except ImportError as error:
                raise _not_importable(part, point.module, error) from error
    raise DetectorUnavailable(
        f"detection of topics is in agent-routing-topics, which is not installed; {INSTALL}"
    )


def load_shipped_model(
    give_way: Callable[[], object] | None = None,
    folder: str = "",
    *,
    waits: bool = False,
    limit_s: float | None = None,
) -> TopicModel:
    """Return the model that ships. Raises DetectorUnavailable.

    give_way: called again and again while a registry is prepared. folder: where vectors of examples
    are kept; "" = in memory alone. waits: detectors are made once their vectors are there. limit_s:
    how long a verdict with vectors may take; None = as in a server.
    """
    load = load_shipped("model")
    model: TopicModel = load(give_way or (lambda: None), folder, waits=waits, limit_s=limit_s)
    return model


def load_named(name: str) -> TopicModel:
    """Return the model of a name: MODULE:NAME, or an entry point of GROUP.

    What stands there is called with no arguments, and returns a model. Raises DetectorUnavailable.
    """
    try:
        return _made(name)
    except (DetectorUnavailable, KeyboardInterrupt):
        raise
    except BaseException as error:
        # SystemExit too, and panics of extensions: the server would end without a word.
        raise DetectorUnavailable(
            f'topic detector "{name}" fails as it is made, with {type(error).__name__}: {error}; '
            "mend it, or leave the setting out to have the one that ships"
        ) from error


def _made(name: str) -> TopicModel:
    module, _, attribute = name.partition(":")
    make = _imported(module, attribute) if attribute else _offered(name)
    model = make()
    version, for_registry = getattr(model, "version", None), getattr(model, "for_registry", None)
    if not isinstance(version, str) or not version or not callable(for_registry):
        raise DetectorUnavailable(
            f'topic detector "{name}" gives {type(model).__name__}, which is no topic model; it '
            "needs version, a word that is not empty, and for_registry(registry)"
        )
    made: TopicModel = model
    return made


def _imported(module: str, attribute: str) -> Any:
    if not all(module.split(".")):
        raise DetectorUnavailable(
            f'topic detector "{module}:{attribute}" does not name a module in full; give '
            "MODULE:NAME, such as my_package.detectors:make"
        )
    try:
        found = import_module(module)
    except ImportError as error:
        raise _not_importable(f"{module}:{attribute}", module, error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise DetectorUnavailable(
                f'topic detector "{module}:{attribute}": {module} has no {attribute}; name a '
                "function or class in it"
            )
        found = getattr(found, part)
    if not callable(found):
        raise DetectorUnavailable(
            f'topic detector "{module}:{attribute}" cannot be called; name a function or class '
            "that returns a topic model"
        )
    return found


def _offered(name: str) -> Any:
    offered = entry_points(group=GROUP)
    for point in offered:
        if point.name == name:
            try:
                return point.load()
            except ImportError as error:
                raise _not_importable(name, point.module, error) from error
    known = ", ".join(sorted(point.name for point in offered)) or "none"
    raise DetectorUnavailable(
        f'topic detector "{name}" is not installed; installed ones: {known}; give one of them, or '
        "MODULE:NAME"
    )


def _not_importable(name: str, module: str, error: ImportError) -> DetectorUnavailable:
    """Tell a module that is not there from one that lacks what it imports itself."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if is_missing and f"{module}.".startswith(f"{error.name}."):
        return DetectorUnavailable(
            f'topic detector "{name}": {error}; install it where the service runs, or put its '
            "folder on PYTHONPATH"
        )
    return DetectorUnavailable(
        f'topic detector "{name}": {module} is there, and cannot be imported: {error}; install '
        "what it needs where the service runs, or mend it"
    )
