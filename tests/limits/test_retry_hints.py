"""How long a provider asks to wait, wherever it says so."""

from __future__ import annotations

from datetime import timedelta
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from tests.limits.errors import WALL, ClientError_, named, read


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"Retry-After-Ms": "250", "Retry-After": "1"}, 0.25),
        ({"retry-after": formatdate(WALL + 42, usegmt=True)}, 42.0),
        ({"retry-after": "-5"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "6m0s"}, None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2025-10-09T08:53:50Z",
            },
            30.0,
        ),
    ],
)
def test_hints_in_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert read(ClientError_(429, headers=headers)).retry_after_s == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (
            "Rate limit reached for m on tokens per min (TPM): Limit 300, Used 299. Please try again in 20s.",
            20.0,
        ),
        ("Please try again in 1m30s. Visit https://example.org to learn more.", 90.0),
        ("Please try again in 6ms.", 0.006),
        ("Please try again in 7m12.5s", 432.5),
        ("Please retry after 20 seconds.", 20.0),
        ("Try again in about 2 minutes and then call support", 120.0),
        ("Please wait 30 seconds before the next request", 30.0),
        ("Please retry in 37.219s.", 37.219),
        ("Retry-After: 12", 12.0),
        ('{"retryDelay": "41s"}', 41.0),
        ("Please try again later.", None),
        ("Limit 20, tried 3 times", None),
    ],
)
def test_hints_in_the_text(text: str, seconds: float | None) -> None:
    assert read(ClientError_(429, text=text)).retry_after_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("attributes", "seconds"),
    [
        ({"retry_after": 12}, 12.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after": timedelta(seconds=3)}, 3.0),
        ({"retry_after_ms": 1500}, 1.5),
        ({"retry_delay": SimpleNamespace(seconds=7, nanos=500_000_000)}, 7.5),
        ({"details": [SimpleNamespace(retry_delay=timedelta(seconds=9))]}, 9.0),
        ({"retry_after": float("nan")}, None),
        ({"retry_after": -1}, None),
        ({"retry_after": True}, None),
    ],
)
def test_hints_in_attributes(attributes: dict[str, object], seconds: float | None) -> None:
    assert read(named("RateLimitError", **attributes)).retry_after_s == seconds


def test_the_header_beats_the_text() -> None:
    assert read(ClientError_(429, headers={"retry-after": "3"}, text="try again in 20s")).retry_after_s == 3.0


@pytest.mark.parametrize("hint", ["99999999", "inf", "72h"])
def test_an_absurd_hint_is_cut_to_a_day_and_marked(hint: str) -> None:
    error = read(ClientError_(429, headers={"retry-after": hint}))
    assert (error.retry_after_s, error.hint_suspect) == (86_400.0, True)


def test_a_nonsense_hint_is_dropped_and_marked() -> None:
    error = read(ClientError_(429, headers={"retry-after": "nan"}))
    assert (error.retry_after_s, error.hint_suspect, error.retryable) == (None, True, True)
    assert read(ClientError_(429, headers={"retry-after": "1"})).hint_suspect is False
