"""The `authorise` hook: asked about every call of every kind, before anything is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrm import AccessDenied, AccessRequest, ResourceManager, identity
from agentrm.adapters import CallSpec, acall
from tests.tools.scene import left_in


def test_who_wants_what_is_asked_before_it_is_queued() -> None:
    asked: list[AccessRequest] = []
    rm = ResourceManager(authorise=lambda call: asked.append(call) or True)
    with identity(agent="a", tenant="t", session="s"), rm.lease(kind="tool", tool="research"):
        with rm.lease(model="gpt-5"):
            pass
    tool, model = asked
    assert tool == AccessRequest("tool", "a", "t", "s", "interactive", "tools", None, "research")
    assert model == AccessRequest("model", "a", "t", "s", "subagent", "default", "gpt-5", None, ("tool:research",))


async def test_a_refusal_is_typed_names_the_principal_and_leaves_nothing() -> None:
    rm = ResourceManager(authorise=lambda call: call.tool != "delete")
    ran = []

    async def run() -> None:
        ran.append(1)

    with pytest.raises(AccessDenied, match="'mallory'.*delete") as caught:
        await acall(rm, CallSpec(kind="tool", tool="delete", agent="mallory"), run)
    assert isinstance(caught.value, PermissionError) and not caught.value.is_retryable
    await acall(rm, CallSpec(kind="tool", tool="read", agent="mallory"), run)
    assert ran == [1] and rm.statistics().running == 0 and rm.statistics().events < 10


def test_what_the_hook_raises_comes_out() -> None:
    def ask(_: AccessRequest) -> bool:
        raise LookupError("no policy for this tenant")

    with pytest.raises(LookupError):
        ResourceManager(authorise=ask).try_lease()


def test_environments_are_asked_about_too(tmp_path: Path) -> None:
    section = {"home": str(tmp_path), "kinds": {"box": {}}}
    with ResourceManager(environments=section, authorise=lambda call: call.kind != "environment") as rm:
        with pytest.raises(AccessDenied):
            rm.environments.get("p", "box")
        assert rm.environments.of_program("p") == {} and left_in(tmp_path) == []
