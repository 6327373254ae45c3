"""Errors are data, too: every class of them survives being copied and being sent to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrm.adapters import AttachError, FrameworkMissing
from agentrm.errors import AgentRMError

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def kinds(cls: type[AgentRMError] = AgentRMError) -> Iterator[type[AgentRMError]]:
    for kind in cls.__subclasses__():
        if kind.__module__.startswith("agentrm.") and kind is not FrameworkMissing:
            yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_error_keeps_its_text_and_what_it_says(way: str) -> None:
    for kind in {*kinds()}:
        error = kind.rebuilt(("what was asked",), {"pool": "gpt", "lacking": 3, "partial": ("a",)})
        again = WAYS[way](error)
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("way", WAYS)
def test_an_error_that_says_what_to_write_or_to_install_still_does(way: str) -> None:
    refused = WAYS[way](AttachError(3, "it is a number", "rm.attach(model)"))
    assert (refused.why, refused.instead) == ("it is a number", "rm.attach(model)")
    missing = WAYS[way](FrameworkMissing("agentrm_crewai", "crewai", "crewai"))
    assert missing.name == "crewai" and "pip install" in str(missing)
