"""Is what a session relies on outside of itself (a workspace, a sandbox) still what it was?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["Checker", "Resource", "describe", "lost_resources", "notice"]

_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class Resource:
    """An attached resource as noted: `location` is a path or whatever its checker understands."""

    kind: str
    location: str
    files: tuple[str, ...] = ()  # of a path: what was there, relative


Checker = Callable[[Resource], str | None]
"""Says in a few words what is wrong with a resource, or None if nothing is."""


def _files(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        return ()
    found = (os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)
    return tuple(sorted(islice(found, _MOST_FILES)))


def describe(kind: str, location: str) -> dict[str, Any]:
    """A resource as JSON, with what is there now."""
    return asdict(Resource(kind, location, _files(Path(location)) if kind == "path" else ()))


def _check_path(resource: Resource) -> str | None:
    root = Path(resource.location)
    if not root.exists():
        return f"{resource.location} no longer exists"
    missing = [name for name in resource.files if not (root / name).exists()]
    if not missing:
        return None
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"{resource.location} has lost {', '.join(missing[:3])}{more}"


def lost_resources(resources: Mapping[str, Resource], checkers: Mapping[str, Checker]) -> dict[str, str]:
    """The resources that are gone or changed, by name, with what is wrong. A kind without a checker is not
    judged.
    """
    known: dict[str, Checker] = {"path": _check_path, **checkers}
    found: dict[str, str] = {}
    for name, resource in resources.items():
        checker = known.get(resource.kind)
        wrong = checker(resource) if checker is not None else None
        if wrong is not None:
            found[name] = wrong
    return found


def notice(lost: Mapping[str, str]) -> str:
    """What the model is told."""
    lines = "\n".join(f"- {name}: {wrong}" for name, wrong in lost.items())
    return (
        "[notice from the runtime] This session was restored. These resources are not what they were before:\n"
        f"{lines}\nDo not rely on them; make again what is needed."
    )
