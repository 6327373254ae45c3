"""What does a failed call of a model provider mean: wait, try again, or stop for good?

`read_error` turns an exception of any client into one `ProviderError`. The rules, in the order in which they
decide:

1. What the body's code names beats the status: an exhausted quota or unpaid bill comes as 429, 403, 402 or
   400, an overlong context as 400, 413 or 429, a rate as 403, an overload as 429.
2. Then the status, then the code alone (an error inside a stream has no status), then the class by its name.
3. The text is the last resort, and only for what is a provider's error already. "exceeded your current quota"
   with a time to retry is a rate: Google words its limits per minute so.

No client and no framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agentrm.errors import AgentRMError
from agentrm.limits.headers import HeaderLimits
from agentrm.limits.provider_evidence import Evidence, attribute, collect, redacted
from agentrm.limits.provider_words import Kind, kind_of_codes, kind_of_names, kind_of_status, speaks_of

__all__ = ["Kind", "ProviderError", "Scope", "read_error"]

Scope = Literal["model", "account"]

_MAX_CHAIN = 32
_TRANSIENT: frozenset[Kind] = frozenset({"rate", "overloaded", "timeout", "connection", "server"})
_HINTED: frozenset[Kind] = frozenset({"rate", "overloaded", "timeout", "server"})
_NEVER_AGAIN_STATUS = frozenset({501, 505})
_NEVER_AGAIN_NAMES = frozenset({"SSLCertVerificationError", "CertificateError"})
_OWN_FAULTS = (
    NameError,
    AttributeError,
    TypeError,
    LookupError,
    AssertionError,
    ImportError,
    SyntaxError,
    ArithmeticError,
)


@dataclass(frozen=True, slots=True)
class ProviderError:
    """What a provider's refusal or failure means for those who want to call it next.

    `retry_after_s` is the provider's own hint, in seconds from now, 0 to one day; None without one and for
    what no wait can help. 0.0 is "now": a caller still needs a floor of its own. `hint_suspect` says that a
    hint was there but was nonsense (dropped) or longer than a day (cut).
    `scope` is what the failure closes: one model, or the account with every model in it.
    `retryable` says whether the same request may succeed later, as it is.
    `headers` is None when the error carries none about limits.
    `message` is the provider's text without keys, for logs and events. It may hold words that frameworks
    search error texts for: do not make it part of an exception's text.
    """

    kind: Kind
    status: int | None
    retry_after_s: float | None
    scope: Scope
    retryable: bool
    headers: HeaderLimits | None
    message: str
    hint_suspect: bool = False


def read_error(exc: BaseException, *, wall: float | None = None) -> ProviderError | None:
    """What `exc` says about the provider, or None if it is not about one. Never raises.

    Goes through `__cause__`, `__context__` and the members of exception groups. agentrm's own errors,
    cancellation and errors of the caller's code are None. Where the outer exception is only a name (a
    framework's wrapper) and an inner one that agrees with it has the answer, the inner one is read.
    `wall` is the time in seconds since the epoch, for hints given as an instant by a server without a `date`.
    """
    first: tuple[Kind, Evidence] | None = None
    distrusted = False
    for link in _chain(exc):
        evidence = collect(link, wall)
        distrusted = distrusted or not _NEVER_AGAIN_NAMES.isdisjoint(evidence.names)
        kind = _kind(evidence)
        if kind is None:
            continue
        if first is None:
            first = (kind, evidence)
        elif not _has_answer(first[1]) and _has_answer(evidence) and _refines(first[0], kind):
            first = (kind, evidence)
    return None if first is None else _judged(*first, distrusted)


def _chain(exc: BaseException) -> Iterator[Exception]:
    """The exceptions behind `exc`, outermost first, as far as they speak about the same failure."""
    seen: set[int] = set()
    stack: list[BaseException | None] = [exc]
    while stack and len(seen) < _MAX_CHAIN:
        link = stack.pop()
        if link is None or id(link) in seen:
            continue
        if isinstance(link, AgentRMError):  # ours: it has been judged, and what it was raised from with it
            return
        members = attribute(link, "exceptions")
        if not isinstance(link, Exception) and not isinstance(members, tuple):
            continue  # cancellation, interrupt, exit
        seen.add(id(link))
        if link.__cause__ is not None:
            stack.append(link.__cause__)
        elif not link.__suppress_context__ and not isinstance(link, _OWN_FAULTS):
            # A bug in a handler's code is not the failure that it was handling.
            stack.append(link.__context__)
        if isinstance(members, tuple):
            stack += [member for member in reversed(members) if isinstance(member, BaseException)]
        if isinstance(link, Exception):
            yield link


def _has_answer(evidence: Evidence) -> bool:
    return evidence.status is not None or kind_of_codes(evidence.codes) is not None


def _refines(outer: Kind, inner: Kind) -> bool:
    precise = {("rate", "quota"), ("server", "overloaded"), ("bad_request", "context_overflow")}
    return inner == outer or outer == "unknown" or (outer, inner) in precise


def _kind(evidence: Evidence) -> Kind | None:
    status = evidence.status
    by_status = None if status is None else kind_of_status(status)
    by_name = kind_of_names(evidence.names) or ("unknown" if evidence.rpc else None)
    stranger = by_status is None and by_name is None
    by_code = kind_of_codes(evidence.codes, alone=stranger)
    if stranger and by_code is None:
        return None
    kind: Kind = by_status or by_code or by_name or "unknown"
    if by_name == "context_overflow":
        return by_name
    if by_code in ("quota", "context_overflow"):
        return by_code
    if by_code == "rate" and (status in (400, 403) or kind in ("server", "overloaded")):
        kind = by_code
    elif by_code == "overloaded" and kind in ("rate", "server"):
        kind = by_code
    elif by_code == "auth" and status == 400:
        kind = by_code
    return _of_text(kind, by_code, evidence)


def _of_text(kind: Kind, by_code: Kind | None, evidence: Evidence) -> Kind:
    """The last resort: texts that turn the kind into another one."""
    text = evidence.text
    if kind == "rate" and _daily(evidence):
        return "quota"
    if kind in ("rate", "bad_request", "unknown") and speaks_of("overflow", text):
        return "context_overflow"
    undecided = kind in ("bad_request", "unknown") or (kind in ("rate", "auth") and by_code != kind)
    if undecided and speaks_of("quota", text):
        return "rate" if kind in ("rate", "unknown") and _told_wait(evidence) else "quota"
    if kind == "auth" and by_code != "auth" and speaks_of("content", text):
        return "bad_request"
    if kind in ("bad_request", "unknown") and speaks_of("key", text):
        return "auth"
    if kind in ("server", "unknown") and speaks_of("overload", text):
        return "overloaded"
    return kind


def _daily(evidence: Evidence) -> bool:
    """Google names the limit it ran into; one per day will not come back within any call's patience."""
    return any("perday" in code for code in evidence.codes)


def _told_wait(evidence: Evidence) -> bool:
    return evidence.headers.retry_after_s is not None or (
        evidence.hint is not None and evidence.hint.seconds is not None
    )


def _judged(kind: Kind, evidence: Evidence, distrusted: bool) -> ProviderError:
    headers = evidence.headers
    hint, suspect = _wait(kind, evidence)
    retryable = kind in _TRANSIENT and evidence.status not in _NEVER_AGAIN_STATUS and not distrusted
    if headers.should_retry is False:
        retryable = False
    elif kind in ("bad_request", "unknown"):
        retryable = headers.should_retry is True or (kind == "unknown" and evidence.is_retryable is True)
    return ProviderError(
        kind=kind,
        status=evidence.status,
        retry_after_s=hint,
        scope=_scope(kind, evidence),
        retryable=retryable,
        headers=headers if headers or headers.suspect else None,
        message=redacted(evidence.text.partition("\n")[0] or evidence.names[0]),
        hint_suspect=suspect,
    )


def _wait(kind: Kind, evidence: Evidence) -> tuple[float | None, bool]:
    """The hint and whether it is doubtful: headers first, then body and text, then the reset of the limit."""
    if kind not in _HINTED:
        return None, False
    headers, told = evidence.headers, evidence.hint
    doubt = any("retry-after" in name for name in headers.suspect)
    if headers.retry_after_s is not None:
        return headers.retry_after_s, doubt
    if told is not None:
        doubt = doubt or told.suspect
        if told.seconds is not None:
            return told.seconds, doubt
    return (headers.exhausted_s if kind == "rate" else None), doubt


def _scope(kind: Kind, evidence: Evidence) -> Scope:
    """Money and keys belong to the account, all else to the model, unless the provider says otherwise."""
    limits = [code for code in evidence.codes if "perproject" in code or "permodel" in code]
    if limits:
        return "model" if any("permodel" in code for code in limits) else "account"
    if kind == "auth" and ("modelnotfound" in evidence.codes or speaks_of("one model", evidence.text)):
        return "model"
    return "account" if kind in ("auth", "quota") else "model"
