"""The failures of the real clients, against answers made on the spot."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.limits.errors import read


def openai_error(status: int, body: object, headers: dict[str, str] | None = None) -> Exception:
    """What the installed openai client raises for such an answer."""
    openai = pytest.importorskip("openai")
    http = sys.modules.get("httpx2") or pytest.importorskip("httpx")

    def answer(request: Any) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return http.Response(status, content=content, headers=headers or {}, request=request)

    client = openai.OpenAI(
        api_key="sk-test-0123456789",
        base_url="http://127.0.0.1:9/v1",
        max_retries=0,
        http_client=http.Client(transport=http.MockTransport(answer)),
    )
    with pytest.raises(Exception) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    return caught.value


def test_the_openai_client() -> None:
    quota = read(
        openai_error(429, {"error": {"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}})
    )
    assert (quota.kind, quota.status, quota.retryable) == ("quota", 429, False)
    text = "Rate limit reached for m on requests per min (RPM): Limit 3, Used 3. Please try again in 20s."
    rate = read(openai_error(429, {"error": {"message": text, "type": "requests", "code": "rate_limit_exceeded"}}))
    assert (rate.kind, rate.retry_after_s, rate.message) == ("rate", 20.0, text)
    hinted = read(
        openai_error(429, {"error": {"message": text}}, {"retry-after-ms": "1200", "x-ratelimit-limit-requests": "3"})
    )
    assert hinted.retry_after_s == 1.2
    assert hinted.headers is not None
    assert hinted.headers.requests.limit == 3
    key = read(
        openai_error(
            401,
            {
                "error": {
                    "message": "Incorrect API key provided: sk-test-0123456789",
                    "code": "invalid_api_key",
                }
            },
        )
    )
    assert (key.kind, key.scope) == ("auth", "account")
    assert "0123456789" not in key.message
    assert read(openai_error(500, b"<html>oops</html>")).kind == "server"
    assert read(openai_error(400, {"error": {"code": "context_length_exceeded"}})).kind == "context_overflow"


def test_the_httpx_client() -> None:
    for name in ("httpx", "httpx2"):
        http = pytest.importorskip(name)
        request = http.Request("POST", "http://127.0.0.1:9/")
        for content, kind in (
            (b'{"error": {"code": "insufficient_quota"}}', "quota"),
            (b"slow down", "rate"),
        ):
            response = http.Response(429, content=content, headers={"Retry-After": "3"}, request=request)
            with pytest.raises(http.HTTPStatusError) as caught:
                response.raise_for_status()
            assert read(caught.value).kind == kind

        def unread() -> Any:
            yield b"{}"

        streamed = http.Response(429, content=unread(), headers={"Retry-After": "3"}, request=request)
        with pytest.raises(http.HTTPStatusError) as caught:
            streamed.raise_for_status()
        assert read(caught.value).retry_after_s == 3.0
        assert read(http.ReadTimeout("slow", request=request)).kind == "timeout"
        assert read(http.ConnectError("refused", request=request)).kind == "connection"
        assert read(http.RemoteProtocolError("peer closed", request=request)).kind == "connection"
        assert read(http.UnsupportedProtocol("ftp", request=request)).retryable is False


def test_langchains_model_errors() -> None:
    exceptions = pytest.importorskip("langchain_core.exceptions")
    for name, kind, retryable in (
        ("ModelRateLimitError", "rate", True),
        ("ModelTimeoutError", "timeout", True),
        ("ModelConnectionError", "connection", True),
        ("ModelAPIError", "server", True),
        ("ModelAuthenticationError", "auth", False),
        ("ModelInvalidRequestError", "bad_request", False),
        ("ContextOverflowError", "context_overflow", False),
    ):
        error = read(getattr(exceptions, name)("failed"))
        assert (error.kind, error.retryable) == (kind, retryable)
