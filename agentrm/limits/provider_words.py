"""Which failure do the codes, class names and texts that providers and their clients use stand for?

The vocabulary of `provider_errors`: what OpenAI, Anthropic, Google, AWS, Azure, Mistral, OpenRouter,
Moonshot, Alibaba, Groq and the clients that people call them with say. Codes are written as
`provider_evidence` spells them: lower case, letters and digits only.
"""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["Kind", "kind_of_codes", "kind_of_names", "kind_of_status", "speaks_of"]

Kind = Literal[
    "rate",
    "quota",
    "auth",
    "overloaded",
    "timeout",
    "connection",
    "server",
    "context_overflow",
    "bad_request",
    "unknown",
]

# In order of precedence: a body often has a precise code beside a vague type ("invalid_request_error").
_CODES: dict[Kind, str] = {
    "quota": """insufficientquota billinghardlimitreached billingnotactive billingerror insufficientbalance
        insufficientcredits insufficientfunds creditbalancetoolow paymentrequired exceededcurrentquotaerror
        spendinglimitreached spendlimitexceeded usagelimitreached dailylimitexceeded outofcredits arrearage
        accountoverdueerror billingdisabled servicequotaexceededexception""",
    "context_overflow": """contextlengthexceeded contextwindowexceeded contextwindowexceedederror
        modelcontextwindowexceeded requesttoolarge stringabovemaxlength""",
    "rate": """ratelimitexceeded ratelimiterror ratelimitreached ratelimited ratelimit ratelimitreachederror
        userratelimitexceeded toomanyrequests toomanyrequestsexception throttlingexception throttling
        throttledexception requestlimitexceeded resourceexhausted tokens requests""",
    "overloaded": """overloadederror overloaded engineoverloaded engineoverloadederror serveroverloaded
        serverbusy modeloverloaded unavailable serviceunavailable serviceunavailableerror
        serviceunavailableexception slowdown modelnotreadyexception capacityexceeded nocapacity""",
    "auth": """invalidapikey apikeyinvalid incorrectapikey authenticationerror permissionerror
        permissiondenied unauthenticated unauthorized forbidden accountdeactivated accountsuspended
        organizationdeactivated accessdeniedexception unrecognizedclientexception
        expiredtokenexception invalidsignatureexception""",
    "timeout": "timeouterror timeout requesttimeout deadlineexceeded modeltimeoutexception",
    "server": """servererror internalservererror internalerror internal apierror internalserverexception
        modelstreamerrorexception modelerrorexception""",
    "bad_request": """invalidrequesterror invalidrequest invalidargument notfounderror notfound modelnotfound
        badrequest failedprecondition outofrange unimplemented validationexception contentpolicyviolation
        contentfilter resourcenotfoundexception""",
}
_CODE_SETS: dict[Kind, frozenset[str]] = {kind: frozenset(words.split()) for kind, words in _CODES.items()}

_COMMON_WORDS = frozenset({"tokens", "requests", "unavailable", "ratelimit", "throttling", "overloaded"})
_TELLING: frozenset[Kind] = frozenset({"quota", "context_overflow", "rate", "overloaded"})

# In order of precedence; inside one row the class nearest to the exception's own decides.
_NAMES: tuple[dict[Kind, str], ...] = (
    {"context_overflow": "ContextOverflowError ContextWindowExceededError"},
    {
        "timeout": """APITimeoutError ModelTimeoutError TimeoutError TimeoutException Timeout DeadlineExceeded
            ReadTimeoutError ConnectTimeoutError"""
    },
    {
        "rate": "RateLimitError ModelRateLimitError ResourceExhausted TooManyRequests",
        "auth": """AuthenticationError PermissionDeniedError ModelAuthenticationError
            ModelPermissionDeniedError Unauthenticated Unauthorized PermissionDenied Forbidden
            NoCredentialsError DefaultCredentialsError""",
        "overloaded": "OverloadedError ServiceUnavailable ServiceUnavailableError",
        "connection": """APIConnectionError ModelConnectionError ConnectionError NetworkError
            RemoteProtocolError ProxyError ClientConnectionError ClientPayloadError EndpointConnectionError
            ChunkedEncodingError ProtocolError IncompleteRead IncompleteReadError ConnectionClosed gaierror
            herror SSLError URLError""",
        "server": "InternalServerError ModelAPIError APIResponseValidationError DecodingError",
        "bad_request": """BadRequestError NotFoundError ConflictError UnprocessableEntityError
            ModelInvalidRequestError ModelNotFoundError UnsupportedProtocol LocalProtocolError InvalidURL""",
    },
    {
        "unknown": """APIError APIStatusError OpenAIError AnthropicError ModelError GoogleAPIError ClientError
            ServerError RpcError HTTPStatusError HTTPError"""
    },
)
_NAME_ROWS: tuple[dict[str, Kind], ...] = tuple(
    {name: kind for kind, names in row.items() for name in names.split()} for row in _NAMES
)

_STATUS: dict[int, Kind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    408: "timeout",
    413: "context_overflow",
    429: "rate",
    498: "overloaded",  # Groq: no flexible capacity
    503: "overloaded",
    504: "timeout",
    524: "timeout",  # Cloudflare: the origin took too long
    529: "overloaded",  # Anthropic
}

_TEXTS = {
    "quota": r"""insufficient[_ ](?:quota|balance|credits?|funds) | exceeded\ your\ current\ quota
        | credit\ balance\ is\ too\ low | billing\ (?:hard\ )?limit | out\ of\ credits
        | account\ is\ not\ active | spending\ limit | payment\ required""",
    "overflow": r"""maximum\ context\ length | context\ (?:window|length)[^.]{0,60}(?:exceed|too\ )
        | exceeds?\b[^.]{0,60}context\ (?:window|length) | prompt\ is\ too\ long
        | input\ token\ count[^.]{0,40}\ exceeds | larger\ than\ max | tokens\ must\ be\ reduced
        | exceeds?\ the\ (?:maximum|configured)\ (?:number\ of\ tokens|limit) | request\ too\ large\ for""",
    "overload": r"overloaded | (?:at|over)\ capacity",
    "key": r"(?:incorrect|invalid)\ (?:x-)?api[\ _-]?key | api[\ _-]?key\ not\ valid",
    "content": r"moderation | flagged | content\ (?:policy|filter)",
    "one model": r"""access\ to\ (?:the\ )?model
        | \bmodel\ \S+\ (?:is\ not|not)\ (?:available|enabled|allowed)""",
}
_TEXT_PATTERNS = {topic: re.compile(text, re.IGNORECASE | re.VERBOSE) for topic, text in _TEXTS.items()}

Topic = Literal["quota", "overflow", "overload", "key", "content", "one model"]


def kind_of_codes(codes: frozenset[str], *, alone: bool = False) -> Kind | None:
    """The kind that codes name. `alone`: only if they would mean it in any exception whatever its class."""
    for kind, known in _CODE_SETS.items():
        if known & codes:
            return kind if not alone or (kind in _TELLING and known & codes - _COMMON_WORDS) else None
    return None


def kind_of_names(names: tuple[str, ...]) -> Kind | None:
    """The kind that class names, in method resolution order, stand for; "unknown" for a base class."""
    for row in _NAME_ROWS:
        for name in names:
            if name in row:
                return row[name]
    return None


def kind_of_status(status: int) -> Kind:
    """The kind of an HTTP status from 400 on."""
    return _STATUS.get(status, "server" if status >= 500 else "bad_request")


def speaks_of(topic: Topic, text: str) -> bool:
    """Whether a provider's text is about the topic."""
    return _TEXT_PATTERNS[topic].search(text) is not None
