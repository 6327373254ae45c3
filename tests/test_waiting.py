"""A wait that does not come to its end says for what it waited."""

from __future__ import annotations

import pytest

from tests import waiting
from tests.waiting import come


async def test_a_wait_ends_when_what_it_waits_for_comes() -> None:
    asked = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    await come(third_time)
    assert len(asked) == 3


async def test_a_wait_for_what_never_comes_fails_with_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WITHIN_S", 0.0)
    moon_is_cheese = False
    with pytest.raises(AssertionError, match="moon_is_cheese"):
        await come(lambda: moon_is_cheese)
