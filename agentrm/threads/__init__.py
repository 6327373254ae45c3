"""Blocking work on threads of our own, awaited, waited for or left: what adapters and tool environments run on."""

from __future__ import annotations

from agentrm.threads.running import in_thread, in_time, on_thread, to_its_end
from agentrm.threads.signals import Signal
from agentrm.threads.work import Work
from agentrm.threads.workers import Worker, borrow

__all__ = ["Signal", "Work", "Worker", "borrow", "in_thread", "in_time", "on_thread", "to_its_end"]
