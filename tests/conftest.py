"""What every test runs in: no telemetry, no network for models, a home of its own, seeds that are printed."""

from __future__ import annotations

import os
import random
import sys

import pytest
from hypothesis import HealthCheck, settings

# Before any framework is imported: telemetry that can't be switched off later, hubs that would be asked.
os.environ.update(
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_TRACING_ENABLED="false",
    OTEL_SDK_DISABLED="true",
    ANONYMIZED_TELEMETRY="false",
    LANGSMITH_TRACING="false",
    OPENAI_AGENTS_DISABLE_TRACING="1",
    LANGCHAIN_TRACING_V2="false",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

settings.register_profile(
    "agentrm",
    deadline=None,  # a test may not depend on the speed of the machine
    print_blob=True,  # a failure can be run again from its output alone
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("agentrm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the seed of randomised tests (default: a new one, printed)")


def _seed_of(config: pytest.Config) -> int:
    chosen: int | None = config.getoption("--seed")
    return chosen if chosen is not None else config.stash[_FRESH_SEED]


_FRESH_SEED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FRESH_SEED] = random.SystemRandom().randrange(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed of randomised tests: {_seed_of(config)} (again: --seed {_seed_of(config)})"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed for this run's randomised tests; printed, so that a failure's captured output names it."""
    number = _seed_of(request.config)
    print(f"seed: {number} (again: pytest --seed {number})")
    return number


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A generator that starts from `seed`."""
    return random.Random(seed)


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's own files."""
    home = tmp_path_factory.mktemp("home")
    os.environ.update(
        HOME=str(home),
        XDG_CACHE_HOME=str(home / ".cache"),
        XDG_CONFIG_HOME=str(home / ".config"),
        XDG_DATA_HOME=str(home / ".local/share"),
    )


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Where torch is loaded it computes on one thread: the test and what it starts share few cores."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
