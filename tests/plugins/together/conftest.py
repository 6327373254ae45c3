"""CrewAI is imported the way its own tests do it."""

from tests.plugins.crewai.conftest import *  # noqa: F403
