"""Errors of agentrm in a client's own type: they go through queues of processes and copies like any other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai")

import openai

from agentrm.errors import BlocksExhausted, ConfigError, QueueTimeout, RunTimeout
from agentrm_openai.clients import _translate

ERRORS = [
    QueueTimeout("waited", pool="gpt", agent="planner", retry_after=1.5, is_retryable=True),
    RunTimeout("ran", pool="gpt"),
    BlocksExhausted("full", pool="kv", lacking=3),
    ConfigError("pools.gpt.lanes", 0, "a whole number above 0"),
]
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("plain", ERRORS, ids=lambda error: type(error).__name__)
def test_the_clients_twin_of_an_error_stays_what_it_is(plain: Any, way: str) -> None:
    twin = _translate(copy.copy(plain))
    again = WAYS[way](twin)
    assert type(again) is type(twin)
    assert isinstance(again, openai.OpenAIError) and isinstance(again, type(plain))
    assert (again.args, vars(again)) == (plain.args, vars(plain))
    assert not isinstance(WAYS[way](plain), openai.OpenAIError)
