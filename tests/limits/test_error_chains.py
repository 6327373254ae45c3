"""Which exception of a chain is the failure: through wrappers, causes and groups, not past our own errors."""

from __future__ import annotations

import pytest

from agentrm.errors import IdleTimeout
from agentrm.limits.provider_errors import read_error
from tests.limits.errors import ClientError_, named, read


def test_the_cause_is_read_through_wrappers() -> None:
    inner = ClientError_(429, headers={"retry-after": "9"})
    for name in ("__cause__", "__context__"):
        outer = RuntimeError("the graph failed")
        setattr(outer, name, inner)
        assert (read(outer).kind, read(outer).retry_after_s) == ("rate", 9.0)


def test_a_wrapper_that_is_only_a_name_takes_the_answer_from_its_cause() -> None:
    outer = named("ModelRateLimitError")
    outer.__cause__ = ClientError_(429, {"error": {"code": "insufficient_quota"}})
    assert read(outer).kind == "quota"


def test_the_newest_failure_counts_not_the_one_that_was_being_handled() -> None:
    newest = named("APIConnectionError")
    newest.__context__ = ClientError_(429)
    assert read(newest).kind == "connection"
    second = ClientError_(503)
    second.__context__ = ClientError_(429)
    assert read(second).kind == "overloaded"


def test_a_bug_in_a_handler_is_not_the_failure_it_handled() -> None:
    bug = KeyError("fallback")
    bug.__context__ = ClientError_(429)
    assert read_error(bug) is None


def test_a_hidden_context_stays_hidden() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raise ClientError_(429)
        except ClientError_:
            raise RuntimeError("done with it") from None
    assert read_error(caught.value) is None


def test_our_own_error_hides_what_it_was_raised_from() -> None:
    ours = IdleTimeout("no chunk for 30 s")
    ours.__cause__ = TimeoutError()
    assert read_error(ours) is None
    wrapped = RuntimeError("node failed")
    wrapped.__cause__ = ours
    assert read_error(wrapped) is None


def test_cycles_and_long_chains_end() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert read_error(first) is None
    chain: Exception = ClientError_(429)
    for _ in range(1000):
        outer = RuntimeError("layer")
        outer.__cause__ = chain
        chain = outer
    assert read_error(chain) is None


def test_members_of_an_exception_group_are_read() -> None:
    group = named("ExceptionGroup", exceptions=(ValueError("other"), ClientError_(429)))
    assert read(group).kind == "rate"
