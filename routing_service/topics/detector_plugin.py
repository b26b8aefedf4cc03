"""Topic models from other packages, found by the name in a setting.

Rule: an operator learns at the start what is missing and what to do about it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from routing_service.topics.topic_detector import TopicModel

GROUP: Final = "agent_routing.topic_detectors"
"""The entry points by which installed packages offer models."""


class DetectorUnavailable(Exception):
    """A topic model that cannot be had; the message says which, why and what to do."""


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
