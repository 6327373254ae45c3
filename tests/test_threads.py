"""Work on threads of our own: whatever it does, the thread serves the next one."""

from __future__ import annotations

import threading

import pytest

from agentrm.threads import borrow, in_thread
from tests.scheduling.driver import until


def test_work_in_the_background_that_fails_is_logged_and_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        in_thread(lambda: 1 / 0)
    until(lambda: caplog.text.count("ZeroDivisionError") == 10)
    over = [threading.Event() for _ in range(20)]
    for one in over:
        borrow().submit(one.set)
    assert all(one.wait(10) for one in over)
