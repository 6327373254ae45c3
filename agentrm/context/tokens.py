"""How many tokens will the model be charged for these messages and tool schemas?

`TokenCounter` counts everything that is sent: text, call names, arguments and ids, result ids, reasoning,
images, tool schemas, and the few tokens of framing per message. With the model's own tokenizer text is
counted exactly. Without it the estimate starts from prices per kind of content (`token_kinds`) and learns a
factor per model and kind from real usage (recursive least squares), so that it follows a model it was never
told about. `error` says how far it is off.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrm.context.messages import Message, Opaque, Part, Reasoning, Text, ToolCall
from agentrm.context.token_kinds import INDEX, KINDS, measure

_PER_MESSAGE = 4.0  # role and separators
_PER_CALL = 6.0
_ARGUMENT_CHARACTERS = 4.4
_PER_SCHEMA = 8.0
_UNKNOWN_IMAGE = (
    1200.0  # between one high-detail 1024 px image of OpenAI (765) and Anthropic's largest (1,600)
)
_LOW_DETAIL = 85.0
_OTHER_MEDIA = 1000.0
_IMAGE_KINDS = frozenset({"image_url", "image", "input_image"})
_REMEMBERED = 20_000

Encode = Callable[[str], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class CountError:
    """How good the estimates of a model were: `observations` requests, mean absolute relative `error`
    over the recent ones, and `bias` (above 0: counted too many). `exact` is True with the model's own
    tokenizer.
    """

    observations: int
    error: float
    bias: float
    exact: bool


class TokenCounter:
    """Counts for one model. Thread-safe.

    `encode` is the model's own tokenizer (`tiktoken`'s `encode`, `tokenizers`' `lambda t:
    enc.encode(t).ids`); None estimates. Counts are whole tokens, rounded up; equal messages are counted
    once and remembered.
    """

    def __init__(self, model: str = "", encode: Encode | None = None) -> None:
        self.model = model
        self._encode = encode
        self._factors = _Factors(len(KINDS))
        self._seen: dict[Message, list[float]] = {}
        self._totals: dict[Message, int] = {}
        self._lock = threading.Lock()

    def text(self, text: str) -> int:
        return self._total(self._measure(text))

    def message(self, message: Message) -> int:
        known = self._totals.get(message)
        if known is None:
            known = self._total(self._parts(message))
            if not message.is_summary:  # notes are made anew each time and carry much
                if len(self._totals) >= _REMEMBERED:
                    self._totals.clear()
                self._totals[message] = known
        return known

    def messages(self, messages: Iterable[Message]) -> int:
        """The size of the list as a request, without tool schemas."""
        return self._total(self._sum(messages, ()))

    def request(self, messages: Iterable[Message], tools: Iterable[Any] = ()) -> int:
        """The size of the full request: messages and tool schemas. Compare this one with a window."""
        return self._total(self._sum(messages, tools))

    def schema(self, tool: Any) -> int:
        return self._total(self._schema(tool))

    def learn(self, messages: Iterable[Message], tools: Iterable[Any], prompt_tokens: int) -> None:
        """Takes note of the prompt size that the provider reported for a request.

        A report of 0 teaches nothing.
        """
        if prompt_tokens <= 0:
            return
        features = self._sum(messages, tools)
        with self._lock:
            self._factors.observe(features, float(prompt_tokens))
            self._totals.clear()

    @property
    def error(self) -> CountError:
        f = self._factors
        return CountError(f.observations, f.error, f.bias, self._encode is not None)

    def factor(self, kind: str) -> float:
        """What was learned for one of `token_kinds.KINDS`; 1.0 before the first observation."""
        return self._factors.values[INDEX[kind]]

    def statistics(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "exact": self._encode is not None,
            "observations": self._factors.observations,
            "error": self._factors.error,
            "factors": {k: round(self.factor(k), 4) for k in KINDS},
        }

    def to_json(self) -> dict[str, Any]:
        """What was learned; `restore` takes it back (a tokenizer is given anew)."""
        with self._lock:
            return {"model": self.model, **self._factors.to_json()}

    @classmethod
    def restore(cls, data: Mapping[str, Any], encode: Encode | None = None) -> TokenCounter:
        counter = cls(data["model"], encode)
        counter._factors = _Factors.from_json(data)
        return counter

    def _measure(self, text: str) -> list[float]:
        if self._encode is None:
            return measure(text)
        out = [0.0] * len(KINDS)
        out[0] = float(len(self._encode(text)))
        return out

    def _total(self, features: Sequence[float]) -> int:
        if not self._factors.observations:
            return math.ceil(sum(features) - 1e-6)
        return math.ceil(sum(f * x for f, x in zip(self._factors.values, features, strict=True)) - 1e-6)

    def _sum(self, messages: Iterable[Message], tools: Iterable[Any]) -> list[float]:
        out = [0.0] * len(KINDS)
        for message in messages:
            _add(out, self._parts(message))
        for tool in tools:
            _add(out, self._schema(tool))
        return out

    def _parts(self, message: Message) -> list[float]:
        known = self._seen.get(message)
        if known is not None:
            return known
        out = [0.0] * len(KINDS)
        out[INDEX["message"]] += _PER_MESSAGE
        if message.name:
            _add(out, self._measure(message.name))
        for part in message.parts:
            self._part(part, out)
        if not message.is_summary:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[message] = out
        return out

    def _part(self, part: Part, out: list[float]) -> None:
        if isinstance(part, Text):
            _add(out, self._measure(part.text))
        elif isinstance(part, ToolCall):
            arguments = part.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
            for piece in (part.name, part.id):
                _add(out, self._measure(piece))
            _add(out, self._arguments(text))
            out[INDEX["message"]] += _PER_CALL
        elif isinstance(part, Reasoning):
            text = part.text or ""
            _add(out, self._measure(text))
            if (
                not text
            ):  # encrypted or redacted: the provider counts what it unpacks, about 3/4 of its base64
                data = next((v for v in part.opaque.values() if isinstance(v, str) and len(v) > 64), "")
                out[INDEX["media"]] += len(data) / 4
        elif isinstance(part, Opaque):
            out[INDEX["media"]] += self._media(part)
        else:
            _add(out, self._measure(part.call_id))
            if part.name:
                _add(out, self._measure(part.name))
            if isinstance(part.content, str):
                _add(out, self._measure(part.content))
            else:
                for inner in part.content:
                    self._part(inner, out)

    def _arguments(self, text: str) -> list[float]:
        """Arguments are escaped text: never fewer tokens than one per 4.4 characters when estimated."""
        found = self._measure(text)
        least = len(text) / _ARGUMENT_CHARACTERS
        total = sum(found)
        if self._encode is not None or total >= least or total == 0:
            return found
        return [value * least / total for value in found]

    def _media(self, part: Opaque) -> float:
        data = part.data
        if part.kind in _IMAGE_KINDS or str(data.get("mime_type", data.get("media_type", ""))).startswith(
            "image/"
        ):
            return _image_tokens(data)
        if part.kind in ("document", "file", "input_audio", "audio", "video"):
            size = _longest(data)
            return max(_OTHER_MEDIA, size / 40) if size else _OTHER_MEDIA
        return float(sum(measure(json.dumps(data, default=str)[:20_000])))

    def _schema(self, tool: Any) -> list[float]:
        out = self._measure(
            tool if isinstance(tool, str) else json.dumps(tool, default=str, ensure_ascii=False)
        )
        out[INDEX["message"]] += _PER_SCHEMA
        return out


def _add(out: list[float], more: Sequence[float]) -> None:
    for index, value in enumerate(more):
        if value:
            out[index] += value


def _longest(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return max((_longest(v) for v in value.values()), default=0)
    return 0


def _image_tokens(data: Mapping[str, Any]) -> float:
    """OpenAI's tile rule where the size of the image is known (85 + 170 per 512 px tile), else a common

    value.
    """
    image = data.get("image_url", data)
    detail = image.get("detail") if isinstance(image, Mapping) else data.get("detail")
    if detail == "low":
        return _LOW_DETAIL
    size = _image_size(_payload(data))
    if size is None:
        return _UNKNOWN_IMAGE
    width, height = size
    scale = min(1.0, 2048 / max(width, height))
    width, height = width * scale, height * scale
    scale = min(1.0, 768 / max(1.0, min(width, height)))
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return 85.0 + 170.0 * tiles


def _payload(data: Mapping[str, Any]) -> str:
    """The start of the base64 data of an image block, "" when the image is somewhere else."""
    for key in ("image_url", "source", "data", "base64", "url"):
        value = data.get(key)
        if isinstance(value, Mapping):
            found = _payload(value)
            if found:
                return found
        elif isinstance(value, str):
            if value.startswith("data:"):
                return value.partition(",")[2][:65536]
            if key in ("data", "base64"):
                return value[:65536]
    return ""


def _image_size(base64_text: str) -> tuple[float, float] | None:
    if len(base64_text) < 40:
        return None
    try:
        head = b64decode(base64_text[: len(base64_text) // 4 * 4])
    except (Base64Error, ValueError):
        return None
    if head.startswith(b"\x89PNG") and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return float(width), float(height)
    if head.startswith(b"GIF8"):
        width, height = struct.unpack("<HH", head[6:10])
        return float(width), float(height)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(head)
    return None


def _jpeg_size(head: bytes) -> tuple[float, float] | None:
    at = 2
    while at + 9 < len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], struct.unpack(">H", head[at + 2 : at + 4])[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return float(width), float(height)
        at += 2 + length
    return None


class _Factors:
    """One factor per kind, fitted by recursive least squares with forgetting (Haykin, Adaptive Filter
    Theory, 9).

    Starts at 1 and stays within [0.3, 4]: a provider that reports nonsense cannot switch counting off.
    """

    _FORGET = 0.995
    _LOW, _HIGH = 0.3, 4.0
    _SMOOTH = 0.2

    def __init__(self, size: int) -> None:
        self.values = [1.0] * size
        self.observations = 0
        self.error = 0.0
        self.bias = 0.0
        self._p = [[0.05 if i == j else 0.0 for j in range(size)] for i in range(size)]

    def observe(self, features: Sequence[float], total: float) -> None:
        """One request of known size.

        Both sides are divided by the size: short requests teach as much as long ones.
        """
        x = [f / total for f in features]
        predicted = sum(v * f for v, f in zip(self.values, x, strict=True))
        off = 1.0 - predicted
        share = self._SMOOTH if self.observations else 1.0
        self.error += share * (abs(off) - self.error)
        self.bias += share * (-off - self.bias)
        self.observations += 1
        size = len(x)
        px = [sum(row[j] * x[j] for j in range(size)) for row in self._p]
        noise = 0.0004  # a request's framing that no kind explains: about 2 %
        gain_base = noise + sum(px[i] * x[i] for i in range(size))
        gain = [value / gain_base for value in px]
        self.values = [
            min(self._HIGH, max(self._LOW, v + g * off)) for v, g in zip(self.values, gain, strict=True)
        ]
        for i in range(size):
            row, g = self._p[i], gain[i]
            for j in range(size):
                row[j] -= g * px[j]
            row[i] = min(0.05, row[i] / self._FORGET)

    def to_json(self) -> dict[str, Any]:
        return {
            "values": list(self.values),
            "observations": self.observations,
            "error": self.error,
            "bias": self.bias,
            "p": [list(row) for row in self._p],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> _Factors:
        out = cls(len(data["values"]))
        out.values = list(data["values"])
        out.observations, out.error, out.bias = data["observations"], data["error"], data["bias"]
        out._p = [list(row) for row in data["p"]]
        return out
