"""Headers of any provider are read into the same four windows, and nothing in them can hurt."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from agentrm.limits.headers import HeaderLimits, RateWindow, read_delay, read_headers

WALL = 1_760_000_000.0  # 2025-10-09T08:53:20Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20.0),
        ("0", 0.0),
        ("0.25", 0.25),
        ("1.5e1", 15.0),
        (" 7 ", 7.0),
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400.0),
        ("500us", 0.0005),
        ("20 seconds", 20.0),
        ("1 minute", 60.0),
        ("1 minute 30 seconds", 90.0),
        ("2 hours and 1 second", 7201.0),
        ("1760000030", 30.0),
        ("1760000030.5", 30.5),
        ("1760000030500", 30.5),
        ("2025-10-09T08:53:50Z", 30.0),
        ("2025-10-09T08:53:50.123456789Z", 30.123456),
        ("2025-10-09T10:53:50+02:00", 30.0),
        ("2025-10-09T10:53:50+0200", 30.0),
        ("2025-10-09T08:53:50", 30.0),
        ("Thu, 09 Oct 2025 08:53:50 GMT", 30.0),
        ("Thursday, 09-Oct-25 08:53:50 GMT", 30.0),
        ("Thu, 09 Oct 2025 08:53:00 GMT", 0.0),
        ("1759999999", 0.0),
    ],
)
def test_every_way_to_write_a_wait_is_understood(text: str, seconds: float) -> None:
    delay = read_delay(text, WALL)
    assert delay.seconds == pytest.approx(seconds, abs=1e-6)
    assert not delay.suspect


@pytest.mark.parametrize(
    "text", ["", "-1", "nan", "soon", "5 apples", "6m0", "1e", "--", "1_000", "2025-13-45T00:00:00Z"]
)
def test_what_is_no_wait_is_none_and_suspect(text: str) -> None:
    delay = read_delay(text, WALL)
    assert delay.seconds is None
    assert delay.suspect


@pytest.mark.parametrize(
    "text", ["86401", "inf", "1e300", "48h", "2035-01-01T00:00:00Z", "99999999", "9" * 400]
)
def test_an_absurd_wait_is_cut_to_a_day_and_suspect(text: str) -> None:
    delay = read_delay(text, WALL)
    assert delay.seconds == 86_400.0
    assert delay.suspect


def test_an_instant_needs_a_clock_to_become_a_wait() -> None:
    assert read_delay("Thu, 09 Oct 2025 08:53:50 GMT", None).seconds is None
    assert read_delay("1760000030", None).seconds is None


def test_openai_headers() -> None:
    limits = read_headers(
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-limit-tokens": "200000",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-reset-tokens": "6m0s",
            "x-request-id": "req_1",
        },
        wall=WALL,
    )
    assert limits.requests == RateWindow(500, 499, 0.12)
    assert limits.tokens == RateWindow(200_000, 0, 360.0)
    assert limits.exhausted_s == 360.0
    assert limits.retry_after_s is None
    assert limits.suspect == ()


def test_anthropic_headers() -> None:
    limits = read_headers(
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2025-10-09T08:53:21Z",
            "anthropic-ratelimit-tokens-limit": "90000",
            "anthropic-ratelimit-tokens-remaining": "89000",
            "anthropic-ratelimit-tokens-reset": "2025-10-09T08:54:20Z",
            "anthropic-ratelimit-input-tokens-limit": "80000",
            "anthropic-ratelimit-input-tokens-remaining": "79000",
            "anthropic-ratelimit-input-tokens-reset": "2025-10-09T08:54:20Z",
            "anthropic-ratelimit-output-tokens-limit": "10000",
            "anthropic-ratelimit-output-tokens-remaining": "10000",
            "anthropic-ratelimit-output-tokens-reset": "2025-10-09T08:53:20Z",
            "anthropic-ratelimit-unified-status": "allowed",
            "retry-after": "12",
        },
        wall=WALL,
    )
    assert limits.requests == RateWindow(50, 49, 1.0)
    assert limits.tokens == RateWindow(90_000, 89_000, 60.0)
    assert limits.input_tokens == RateWindow(80_000, 79_000, 60.0)
    assert limits.output_tokens == RateWindow(10_000, 10_000, 0.0)
    assert limits.retry_after_s == 12.0
    assert limits.exhausted_s is None


@pytest.mark.parametrize(
    "headers",
    [
        {"ratelimit-limit": "100", "ratelimit-remaining": "7", "ratelimit-reset": "30"},
        {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "7", "RateLimit-Reset": "30"},
        {"ratelimit": "limit=100, remaining=7, reset=30"},
        {"ratelimit": '"default";r=7;t=30', "ratelimit-policy": '"default";q=100;w=60'},
        {
            "ratelimit": '"day";r=900;t=9000, "burst";r=7;t=30',
            "ratelimit-policy": '"day";q=1000, "burst";q=100;w=60',
        },
        {"ratelimit": "burst;r=7;t=30", "ratelimit-policy": "burst;q=100;w=60"},
        {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "7", "x-ratelimit-reset": "1760000030"},
        {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "7", "x-ratelimit-reset": "1760000030000"},
        {"x-rate-limit-limit": "100", "x-rate-limit-remaining": "7", "x-rate-limit-reset": "30"},
        {
            "x-ratelimit-limit-req-minute": "100",
            "x-ratelimit-remaining-req-minute": "7",
            "x-ratelimit-reset-req-minute": "30",
        },
    ],
)
def test_generic_and_draft_headers_are_about_requests(headers: dict[str, str]) -> None:
    limits = read_headers(headers, wall=WALL)
    assert limits.requests == RateWindow(100, 7, 30.0)
    assert limits.suspect == ()


def test_of_several_windows_the_empty_one_decides() -> None:
    headers = {
        "x-ratelimit-limit-requests-minute": "30",
        "x-ratelimit-remaining-requests-minute": "30",
        "x-ratelimit-limit-requests-day": "1000",
        "x-ratelimit-remaining-requests-day": "1000",
        "x-ratelimit-reset-requests-day": "2h",
    }
    assert read_headers(headers, wall=WALL).requests == RateWindow(30, 30, None)
    headers["x-ratelimit-remaining-requests-day"] = "0"
    assert read_headers(headers, wall=WALL).requests == RateWindow(1000, 0, 7200.0)


def test_a_ratelimit_policy_that_does_not_count_requests_is_left_alone() -> None:
    headers = {"ratelimit": '"bytes";r=7;t=30', "ratelimit-policy": '"bytes";q=100;qu="content-bytes"'}
    assert read_headers(headers, wall=WALL).requests == RateWindow()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "junk", "retry-after": "2"}, 2.0),
        ({"retry-after": "Thu, 09 Oct 2025 08:53:50 GMT"}, 30.0),
        ({"retry-after": "20s"}, 20.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": 3}, 3.0),
        ({"retry-after": ["4", "5"]}, 4.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after(headers: dict[str, object], seconds: float | None) -> None:
    assert read_headers(headers, wall=WALL).retry_after_s == seconds


def test_the_servers_date_wins_over_a_wrong_local_clock() -> None:
    headers = {"date": formatdate(WALL, usegmt=True), "retry-after": formatdate(WALL + 30, usegmt=True)}
    assert read_headers(headers, wall=WALL - 3600).retry_after_s == 30.0
    assert read_headers(headers).retry_after_s == 30.0


def test_the_servers_own_verdict_is_kept() -> None:
    assert read_headers({"x-should-retry": "false"}).should_retry is False
    assert read_headers({"x-should-retry": "true"}).should_retry is True
    assert read_headers({"x-should-retry": "maybe"}).should_retry is None


def test_unreadable_values_are_none_and_named() -> None:
    limits = read_headers(
        {
            "x-ratelimit-limit-requests": "many",
            "x-ratelimit-remaining-requests": "-1",
            "retry-after": "later",
        },
        wall=WALL,
    )
    assert limits.requests == RateWindow()
    assert set(limits.suspect) == {
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "retry-after",
    }


@pytest.mark.parametrize(
    "headers", [None, {}, [], 7, "text", object(), {"a": None}, [("a",)], {b"x": b"y"}, {1: 2}]
)
def test_what_is_no_headers_says_nothing(headers: object) -> None:
    limits = read_headers(headers, wall=WALL)
    assert limits == HeaderLimits()
    assert not limits


def test_pairs_bytes_and_httpx_objects_are_headers_too() -> None:
    httpx = pytest.importorskip("httpx")
    pairs = [(b"Retry-After", b"5"), (b"X-RateLimit-Remaining-Requests", b"3")]
    for headers in (pairs, dict(pairs), httpx.Headers(pairs)):
        limits = read_headers(headers, wall=WALL)
        assert (limits.retry_after_s, limits.requests.remaining) == (5.0, 3)


def test_an_object_that_raises_says_nothing() -> None:
    class Broken:
        def items(self) -> object:
            raise RuntimeError("no")

    assert read_headers(Broken(), wall=WALL) == HeaderLimits()


def test_no_header_makes_it_raise_or_leave_its_ranges(rng: random.Random) -> None:
    names = ["retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "date", "x-ratelimit-reset"]
    names += [
        f"x-ratelimit-{field}-{unit}"
        for field in ("limit", "remaining", "reset")
        for unit in ("requests", "tokens")
    ]
    names += [
        f"anthropic-ratelimit-{unit}-{field}"
        for field in ("limit", "reset")
        for unit in ("requests", "input-tokens")
    ]
    alphabet = '0123456789.-+:;,="Tzmshd eE\x00é'
    values = [
        "inf",
        "-inf",
        "nan",
        "1e999",
        "9" * 5000,
        "0" * 5000,
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-23:59",
        "٣",
    ]
    for _ in range(3000):
        headers = {
            name: rng.choice(values)
            if rng.random() < 0.3
            else "".join(rng.choice(alphabet) for _ in range(rng.randrange(24)))
            for name in rng.sample(names, 6)
        }
        limits = read_headers(headers, wall=rng.choice([None, WALL, -1e12, 1e12]))
        for window in (limits.requests, limits.tokens, limits.input_tokens, limits.output_tokens):
            assert window.limit is None or 0 <= window.limit <= 2**53
            assert window.remaining is None or 0 <= window.remaining <= 2**53
            assert window.reset_s is None or 0.0 <= window.reset_s <= 86_400.0
        assert limits.retry_after_s is None or 0.0 <= limits.retry_after_s <= 86_400.0
