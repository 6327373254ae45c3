"""The section of the gateway: where it listens, which engines stand behind it, and who may use it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from agentrm.config.readers import choice, flag, listed, named, seconds, text, whole
from agentrm.config.schema import Section, key, section
from agentrm.config.sections import MOST_LANES, PATTERN
from agentrm.errors import ConfigError


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port, _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    whole = parts.scheme in ("http", "https") and parts.hostname and port != 0 and url.isprintable()
    return bool(whole) and not (parts.query or parts.fragment or "@" in parts.netloc or " " in url)


_URL = text('an address such as "http://127.0.0.1:8000", without user, query or fragment (keys: api_key_env)', _is_url)
_ENGINE = text("a name of printable characters: text that is not empty, without blanks at its ends", str.isprintable)
_VARIABLE = text("the name of an environment variable", lambda name: re.fullmatch(r"[A-Za-z_]\w*", name) is not None)
_DIGEST = text("64 hexadecimal digits", lambda digest: re.fullmatch(r"[0-9a-f]{64}", digest) is not None)


def _none() -> Mapping[str, object]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GatewayBackend(Section):
    """One engine behind the gateway. Those with the same `models` are interchangeable: a program runs on whichever
    has room. Calls run in the pool of the backend's name, which has `lanes` lanes unless `pools` says more."""

    url: str = key(_URL, "", "Where it listens; a path at the end (`/v1`) is left out.")
    kind: str = key(
        text("the name of a kind that is installed: llamacpp, openai, sglang, vllm"),
        "openai",
        "Which engine it is. `openai` is any server that speaks OpenAI's protocol.",
    )
    models: tuple[str, ...] = key(
        listed(PATTERN), ("*",), "Patterns of model names that it serves. The first backend that matches decides."
    )
    lanes: int = key(whole(1, MOST_LANES), 64, "Concurrent calls.")
    kv_tokens: int | None = key(
        whole(), None, "Tokens that its KV memory holds; null: what it says itself, no bound if it says nothing."
    )
    api_key_env: str | None = key(_VARIABLE, None, "The environment variable with the key that the engine wants.")
    priority: bool = key(
        flag(), False, "Whether it was started to schedule by priority; then it is told each call's class."
    )
    admin: bool = key(flag(), False, "Whether its administrative endpoints (flush, abort) are on and may be used.")
    swap_dir: str | None = key(
        text("a folder"),
        None,
        "llama.cpp: the folder of `--slot-save-path`, as the gateway sees it. Backends with the same folder take over "
        "each other's programs.",
    )

    def check(self, key: str) -> None:
        if not self.url:
            raise ConfigError.missing(f"{key}.url", _URL.allowed)


@dataclass(frozen=True, slots=True)
class GatewayKey(Section):
    """One API key. The key itself stands in the environment or only as a digest, never in the file."""

    env: str | None = key(_VARIABLE, None, "The environment variable that holds the key.")
    sha256: str | None = key(_DIGEST, None, "The SHA-256 of the key, in hexadecimal digits, instead of `env`.")
    tenant: str = key(text("a name"), "default", "The tenant whose calls these are.")
    priority: Literal["interactive", "subagent", "background"] = key(
        choice("interactive", "subagent", "background"), "interactive", "The highest class that it may ask for."
    )

    def check(self, key: str) -> None:
        if (self.env is None) == (self.sha256 is None):
            raise ConfigError(key, {"env": self.env, "sha256": self.sha256}, "exactly one of env and sha256")


@dataclass(frozen=True, slots=True)
class GatewayTls(Section):
    """Certificate and key, both or neither."""

    cert: str | None = key(text("a file"), None, "PEM file with the certificate and its chain.")
    key: str | None = key(text("a file"), None, "PEM file with the private key.")

    def check(self, key: str) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError(key, {"cert": self.cert, "key": self.key}, "cert and key together")


@dataclass(frozen=True, slots=True)
class Gateway(Section):
    """`agentrm serve`: an OpenAI-compatible address in front of any number of engines."""

    host: str = key(text("an address"), "127.0.0.1", "Where it listens. Beyond loopback only with `keys`.")
    port: int = key(whole(0, 65535), 8700, "The port; 0: a free one.")
    backends: Mapping[str, GatewayBackend] = key(
        named(section(GatewayBackend), _ENGINE), _none, "The engines, by name."
    )
    keys: Mapping[str, GatewayKey] = key(
        named(section(GatewayKey)), _none, "Who may use it, by name. None: anybody who can reach it."
    )
    tls: GatewayTls = key(section(GatewayTls), GatewayTls, "Encryption between clients and the gateway.")
    max_request_bytes: int = key(whole(), 32_000_000, "The largest request that is taken.")
    max_reply_bytes: int = key(whole(), 64_000_000, "The largest reply that is not streamed, and the largest frame.")
    max_queued: int = key(
        whole(1, 1_000_000), 1_000, "Calls that may wait for room on the engines; one more is refused with 429."
    )
    queue_s: float = key(seconds(), 300.0, "Seconds that a call may wait there.")
    down_s: float = key(
        seconds(), 10.0, "Seconds that calls wait while none of their engines is up; then they are answered 503."
    )
    max_connections: int = key(
        whole(1, 1_000_000), 10_000, "Connections of clients at once; one more is answered 503. Mind `ulimit -n`."
    )
    head_s: float = key(seconds(), 30.0, "Seconds for a TLS handshake, and for the whole head of a request.")
    unread_s: float = key(seconds(), 120.0, "Seconds that a client may take nothing of an answer that waits for it.")
    connect_s: float = key(seconds(), 5.0, "Seconds within which an engine must accept a connection.")
    poll_s: float = key(seconds(), 2.0, "Seconds between two looks at the engines.")
    poll_limit_s: float = key(seconds(), 1.0, "Seconds within which an engine must say how it is.")
    idle_s: float = key(seconds(), 1_800.0, "Seconds after which a program of which nothing is heard is ended.")
    drain_s: float = key(seconds(zero=True), 30.0, "Seconds that running calls are given when the gateway stops.")

    def check(self, key: str) -> None:
        if not self.keys and not _is_loopback(self.host):
            raise ConfigError(f"{key}.host", self.host, "a loopback address as long as no `keys` are configured")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
