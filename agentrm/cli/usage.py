"""What is wrong with a command line that argparse lets pass."""

from __future__ import annotations

from agentrm.errors import AgentRMError


class UsageError(AgentRMError):
    """An argument that cannot be."""
