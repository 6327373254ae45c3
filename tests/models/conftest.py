"""Models for these tests: a tiny random one for mechanics, the real one where its weights are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrm.models import LocalEngine, catalog


@pytest.fixture(scope="session")
def tiny() -> LocalEngine:
    pytest.importorskip("transformers")
    pytest.importorskip("torch").set_num_threads(1)
    return LocalEngine.load("tiny-random", device="cpu")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LocalEngine]:
    pytest.importorskip("transformers")
    pytest.importorskip("torch").set_num_threads(1)
    if catalog.installed_file(catalog.lookup("smollm2-135m")) is None:
        pytest.skip("its weights are not installed: agentrm models fetch smollm2-135m")
    yield LocalEngine.load("smollm2-135m", device="cpu")
