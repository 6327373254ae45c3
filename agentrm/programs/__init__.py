"""Agentic programs: what they hold on the engines that serve them, and when each may go on."""

from __future__ import annotations

from agentrm.programs.current import CurrentProgram, current_program
from agentrm.programs.program import Changes, Paused, Prefix, Program, Ticket
from agentrm.programs.scheduler import ProgramScheduler, ProgramStatistics
from agentrm.programs.settings import ProgramSettings

__all__ = [
    "Changes",
    "CurrentProgram",
    "Paused",
    "Prefix",
    "Program",
    "ProgramScheduler",
    "ProgramSettings",
    "ProgramStatistics",
    "Ticket",
    "current_program",
]
