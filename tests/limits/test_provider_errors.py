"""Whatever client raised it, a provider's failure is read as what it means."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
import sys
from types import SimpleNamespace

import pytest

from agentrm.errors import IdleTimeout, QueueTimeout
from agentrm.limits.provider_errors import read_error
from tests.limits.errors import WALL, ClientError_, named, read


@pytest.mark.parametrize(
    ("status", "kind", "scope", "retryable"),
    [
        (400, "bad_request", "model", False),
        (401, "auth", "account", False),
        (402, "quota", "account", False),
        (403, "auth", "account", False),
        (404, "bad_request", "model", False),
        (408, "timeout", "model", True),
        (409, "bad_request", "model", False),
        (413, "context_overflow", "model", False),
        (422, "bad_request", "model", False),
        (429, "rate", "model", True),
        (500, "server", "model", True),
        (501, "server", "model", False),
        (502, "server", "model", True),
        (503, "overloaded", "model", True),
        (504, "timeout", "model", True),
        (529, "overloaded", "model", True),
    ],
)
def test_the_status_alone_decides_where_nothing_else_is_said(
    status: int, kind: str, scope: str, retryable: bool
) -> None:
    error = read(ClientError_(status))
    assert (error.kind, error.status, error.scope, error.retryable) == (kind, status, scope, retryable)
    assert error.retry_after_s is None
    assert error.headers is None


@pytest.mark.parametrize(
    "exc",
    [
        ClientError_(
            429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}
        ),
        ClientError_(429, {"error": {"type": "insufficient_quota"}}),
        ClientError_(429, {"code": "insufficient_quota"}),
        ClientError_(429, b'{"error": {"code": "insufficient_quota"}}'),
        ClientError_(429, {"error": {"code": "billing_hard_limit_reached", "type": "invalid_request_error"}}),
        ClientError_(400, {"error": {"code": "billing_hard_limit_reached", "type": "invalid_request_error"}}),
        ClientError_(429, {"type": "error", "error": {"type": "billing_error", "message": "x"}}),
        ClientError_(403, {"error": {"code": "insufficient_quota"}}),
        ClientError_(
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "Your credit balance is too low to access the Anthropic API.",
                },
            },
        ),
        ClientError_(
            429, text="You exceeded your current quota, please check your plan and billing details."
        ),
        ClientError_(402, text="Insufficient Balance"),
        named("Oddity", code="insufficient_quota"),
        named("APIError", code="insufficient_quota"),
    ],
)
def test_a_quota_or_bill_is_final_for_the_account_whatever_status_it_comes_with(exc: Exception) -> None:
    error = read(exc)
    assert (error.kind, error.scope, error.retryable, error.retry_after_s) == (
        "quota",
        "account",
        False,
        None,
    )


def test_a_quota_has_no_hint_even_if_the_header_names_one() -> None:
    error = read(ClientError_(429, {"error": {"code": "insufficient_quota"}}, {"retry-after": "20"}))
    assert error.kind == "quota"
    assert error.retry_after_s is None
    assert error.headers is not None
    assert error.headers.retry_after_s == 20.0


@pytest.mark.parametrize(
    "exc",
    [
        ClientError_(429, {"error": {"code": "rate_limit_exceeded", "type": "tokens"}}),
        ClientError_(429, {"type": "error", "error": {"type": "rate_limit_error"}}),
        # The words of a quota with the code of a rate: the code counts.
        ClientError_(
            429, {"error": {"code": "rate_limit_exceeded", "message": "You exceeded your current quota"}}
        ),
        ClientError_(429, text="Requests exceeded the call rate of your current pricing tier"),
        ClientError_(403, {"error": {"errors": [{"reason": "rateLimitExceeded"}], "code": 403}}),
        named("Oddity", status="RESOURCE_EXHAUSTED"),
        named("Oddity", code="RESOURCE_EXHAUSTED"),
        named("RateLimitError"),
        named("OpenAIRateLimitError", type("ModelRateLimitError", (Exception,), {})),
        named("APIError", body={"code": "rate_limit_exceeded"}),  # an error inside a stream has no status
        ValueError({"message": "Provider returned error", "code": 429}),
    ],
)
def test_a_rate_is_worth_waiting_for_and_closes_one_model(exc: Exception) -> None:
    error = read(exc)
    assert (error.kind, error.scope, error.retryable) == ("rate", "model", True)


def test_google_words_its_limits_per_minute_like_a_quota() -> None:
    def google(quota: str) -> Exception:
        details = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"},
        ]
        body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}}
        text = "You exceeded your current quota, please check your plan and billing details."
        return named("ClientError", text=text, code=429, status="RESOURCE_EXHAUSTED", details=body)

    minute = read(google("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"))
    assert (minute.kind, minute.retry_after_s, minute.scope) == ("rate", 37.0, "model")
    whole = read(google("GenerateRequestsPerMinutePerProject"))
    assert (whole.kind, whole.scope) == ("rate", "account")
    day = read(google("GenerateRequestsPerDayPerProjectPerModel-FreeTier"))
    assert (day.kind, day.scope, day.retryable, day.retry_after_s) == ("quota", "model", False, None)


def test_the_words_of_a_quota_with_a_time_to_retry_are_a_rate() -> None:
    error = read(ClientError_(429, text="You exceeded your current quota. Please retry in 37.2s."))
    assert (error.kind, error.retry_after_s) == ("rate", 37.2)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (ClientError_(529, {"error": {"type": "overloaded_error"}}), "overloaded"),
        (ClientError_(500, {"error": {"type": "overloaded_error"}}), "overloaded"),
        (ClientError_(429, {"error": {"type": "engine_overloaded_error"}}), "overloaded"),
        (named("APIError", body={"type": "overloaded_error"}), "overloaded"),
        (named("APIError", text="The engine is currently overloaded"), "overloaded"),
        (ClientError_(500, text='InternalServerError: {"type": "overloaded_error"}'), "overloaded"),
        (named("InternalServerError"), "server"),
        (named("APIResponseValidationError", status_code=200), "server"),
        (ClientError_(400, {"error": {"code": "context_length_exceeded"}}), "context_overflow"),
        (ClientError_(400, text="This model's maximum context length is 8192 tokens"), "context_overflow"),
        (ClientError_(400, text="prompt is too long: 210000 tokens > 200000 maximum"), "context_overflow"),
        (
            ClientError_(429, {"code": "rate_limit_exceeded"}, text="Request too large for gpt-x"),
            "context_overflow",
        ),
        (
            named(
                "X", type("BadRequestError", (Exception,), {}), type("ContextOverflowError", (Exception,), {})
            ),
            "context_overflow",
        ),
        (ClientError_(400, {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}), "auth"),
        (ClientError_(400, text="Incorrect API key provided"), "auth"),
        (ClientError_(403, text="Your input was flagged by moderation"), "bad_request"),
        (named("AuthenticationError"), "auth"),
        (named("APIError"), "unknown"),
    ],
)
def test_what_the_body_names_beats_the_status(exc: Exception, kind: str) -> None:
    assert read(exc).kind == kind


def test_a_model_one_may_not_use_does_not_close_the_account() -> None:
    exc = ClientError_(403, {"error": {"code": "model_not_found", "message": "no access to model `m9`"}})
    error = read(exc)
    assert (error.kind, error.scope, error.retryable) == ("auth", "model", False)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (TimeoutError(), "timeout"),
        (asyncio.TimeoutError(), "timeout"),
        (named("APITimeoutError", type("APIConnectionError", (Exception,), {})), "timeout"),
        (named("ConnectTimeout", ConnectionError, type("Timeout", (Exception,), {})), "timeout"),
        (named("DeadlineExceeded"), "timeout"),
        (ConnectionResetError(), "connection"),
        (named("APIConnectionError"), "connection"),
        (named("RemoteProtocolError"), "connection"),
        (asyncio.IncompleteReadError(b"", 4), "connection"),
        (ssl.SSLError("handshake"), "connection"),
    ],
)
def test_failures_below_http(exc: Exception, kind: str) -> None:
    error = read(exc)
    assert (error.kind, error.status, error.scope, error.retryable) == (kind, None, "model", True)


def test_a_certificate_that_does_not_hold_is_not_tried_again() -> None:
    exc = ConnectionError("connect")
    exc.__cause__ = ssl.SSLCertVerificationError("self-signed")
    assert (read(exc).kind, read(exc).retryable) == ("connection", False)


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("429 Too Many Requests"),
        KeyError("rate"),
        named("Oddity", code="internal"),
        named("Oddity", code=7),
        FileNotFoundError("x"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(429),
        QueueTimeout("waited 3 s"),
        IdleTimeout("no chunk for 30 s"),
    ],
)
def test_what_is_not_about_a_provider_is_none(exc: BaseException) -> None:
    assert read_error(exc) is None


def test_the_servers_own_verdict_counts() -> None:
    assert read(ClientError_(429, headers={"x-should-retry": "false"})).retryable is False
    assert read(ClientError_(409, headers={"x-should-retry": "true"})).retryable is True
    assert read(ClientError_(401, headers={"x-should-retry": "true"})).retryable is False


def test_grpc_botocore_urllib_and_aiohttp_shapes() -> None:
    grpc = named("RpcError")
    grpc.code = lambda: SimpleNamespace(name="RESOURCE_EXHAUSTED", value=(8, "resource exhausted"))  # type: ignore[attr-defined]
    grpc.details = lambda: "Quota of minute used up"  # type: ignore[attr-defined]
    grpc.trailing_metadata = lambda: (("retry-after", "4"),)  # type: ignore[attr-defined]
    assert (read(grpc).kind, read(grpc).retry_after_s, read(grpc).message) == (
        "rate",
        4.0,
        "Quota of minute used up",
    )
    stranger = named("Failure", code=lambda self: SimpleNamespace(name="UNAUTHENTICATED"))
    assert read(stranger).kind == "auth"
    boto = named(
        "ClientError",
        response={
            "Error": {"Code": "ThrottlingException", "Message": "slow"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {"retry-after": "2"}},
        },
    )
    assert (read(boto).kind, read(boto).status, read(boto).retry_after_s) == ("rate", 400, 2.0)
    urllib = named("HTTPError", code=429, reason="Too Many Requests", headers={"Retry-After": "8"})
    assert (read(urllib).kind, read(urllib).retry_after_s) == ("rate", 8.0)
    aiohttp = named("ClientResponseError", status=503, headers={"Retry-After": "8"})
    assert (read(aiohttp).kind, read(aiohttp).retry_after_s) == ("overloaded", 8.0)


def test_a_body_that_was_not_received_is_not_fetched() -> None:
    class Response:  # requests: false for an error, and its content would be read from the network
        status_code = 429
        headers = {"retry-after": "5"}

        def __init__(self) -> None:
            self._content_consumed = False

        def __bool__(self) -> bool:
            return False

        def json(self) -> object:
            raise AssertionError("read from the network")

    error = read(named("HTTPError", response=Response()))
    assert (error.kind, error.retry_after_s) == ("rate", 5.0)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcDEF1234567890abcDEF",
        "sk-ant-api03-abcdefghijk",
        "AIzaSyA1234567890abcdefghijklmno",
        "AKIAIOSFODNN7EXAMPLE",
        "gsk_abcdefghijklmnop",
        "eyJhbGciOi.eyJzdWIiOiIxMjM0.abc",
        "sk-abc1***********wxyz",
        "0123456789abcdef0123456789abcdef0123456789abcdef",
    ],
)
def test_no_key_is_left_in_the_message(secret: str) -> None:
    for text in (
        f"Incorrect API key provided: {secret}. You can find your key at example.org",
        f"request failed, headers were Authorization: Bearer {secret}",
        f"GET https://example.org/v1?key={secret}&alt=json failed",
        f'{{"api_key": "{secret}", "model": "m"}}',
        f"wrong one {secret}",
    ):
        message = read(ClientError_(401, text=text)).message
        assert secret not in message
        assert secret[4:16] not in message
        assert "[redacted]" in message


def test_an_ordinary_message_is_kept() -> None:
    text = (
        "Limit 300 tokens, used 200: max_tokens=4096 is too much for m-08-06 (req_011CSHoEeqs5C35K2UUqR7Fy)"
    )
    assert read(ClientError_(400, text=text)).message == text
    assert len(read(ClientError_(400, text="words " * 1000)).message) == 500


def test_nothing_that_an_exception_does_makes_it_raise(rng: random.Random) -> None:
    class Hostile(Exception):
        def __getattribute__(self, name: str) -> object:
            if name.startswith("__"):
                return super().__getattribute__(name)
            raise RuntimeError(name)

        def __str__(self) -> str:
            raise RuntimeError("str")

    assert read_error(Hostile()) is None
    names = [
        "status_code",
        "status",
        "code",
        "type",
        "body",
        "error",
        "details",
        "response",
        "headers",
        "retry_after",
        "message",
    ]
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    values: list[object] = [
        None, True, 429, -1, 10**400, -(10**400), float("nan"), "429", "x" * 10_000, b"\xff", deep,
        {"error": None}, {"error": deep}, {"code": {"code": {}}}, '{"error": [', "[" * 60_000,
        lambda: 1 / 0, lambda x: x, object(), SimpleNamespace(headers=7), int,
    ]  # fmt: skip
    for _ in range(3000):
        exc = named("APIError", **{name: rng.choice(values) for name in rng.sample(names, 5)})
        error = read_error(exc, wall=rng.choice([None, WALL]))
        assert error is not None
        assert error.retry_after_s is None or 0.0 <= error.retry_after_s <= 86_400.0


def test_reading_an_error_loads_no_client_and_no_framework() -> None:
    code = (
        "import sys; from agentrm.limits.provider_errors import read_error; read_error(TimeoutError());"
        "print([m for m in ('openai', 'httpx', 'httpx2', 'langchain_core', 'anthropic') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
