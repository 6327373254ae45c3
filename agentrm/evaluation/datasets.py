"""How are the evaluation files read?

Three formats, each plain or gzip: `locomo` (the original's JSON), `conversation` (JSON lines, described in
docs/context.md) and trajectories (JSON lines with OpenAI-format `messages`).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from agentrm.context.convert_openai import from_openai
from agentrm.context.messages import Message, Text
from agentrm.errors import AgentRMError

_EVIDENCE = re.compile(r"D\d+:\d+")
_SESSION = re.compile(r"session_(\d+)$")
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "adversarial"}


class DatasetError(AgentRMError, ValueError):
    """A file that is not in the format asked for; the text names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    evidence: tuple[str, ...]
    answer: str
    category: str


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    id: str
    messages: tuple[Message, ...]


def read_conversations(path: str | Path, form: str) -> list[Conversation]:
    """All conversations of a file. `form` is `locomo` or `conversation`. Raises `DatasetError`."""
    if form == "locomo":
        return _locomo(Path(path))
    if form == "conversation":
        found = [_conversation(entry, path, line) for line, entry in _lines(path)]
        if not found:
            raise DatasetError(f"{path} holds no conversation; each line is an object with id, messages and questions")
        return found
    raise DatasetError(f"format {form!r} is unknown; use locomo or conversation")


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """All runs of a JSON-lines file:

    each line an object with `messages` (OpenAI chat format) and, best, `id`.
    """
    out = []
    for line, entry in _lines(path):
        messages = entry.get("messages") if isinstance(entry, Mapping) else entry
        if not isinstance(messages, list):
            raise DatasetError(f"{path}, line {line}: no list of messages")
        given = entry.get("id", line) if isinstance(entry, Mapping) else line
        out.append(Trajectory(str(given), tuple(from_openai(messages))))
    if not out:
        raise DatasetError(f"{path} holds no run; each line is an object with `messages` in OpenAI chat format")
    return out


@contextmanager
def _open(path: str | Path) -> Iterator[IO[str]]:
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as exc:
        raise DatasetError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def _lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise DatasetError(f"{path}, line {number}: not JSON ({exc})") from exc


def _conversation(entry: Any, path: str | Path, line: int) -> Conversation:
    try:
        messages = []
        for raw in entry["messages"]:
            if "parts" in raw:
                messages.append(Message.from_json(raw))
            else:
                read = from_openai([raw])[0]
                messages.append(
                    Message(
                        str(raw["id"]),
                        read.role,
                        read.parts,
                        read.name,
                        raw.get("created"),
                        read.flags,
                        read.extra,
                    )
                )
        questions = tuple(
            Question(
                str(q["text"]),
                tuple(str(e) for e in q.get("evidence", ())),
                str(q.get("answer", "")),
                str(q.get("category", "all")),
            )
            for q in entry.get("questions", ())
        )
        known = {message.id for message in messages}
        lost = [name for question in questions for name in question.evidence if name not in known]
        if lost:
            raise DatasetError(f"{path}, line {line}: evidence {lost[0]!r} is the id of no message here")
        return Conversation(str(entry.get("id", line)), tuple(messages), questions)
    except (KeyError, TypeError) as exc:
        raise DatasetError(
            f"{path}, line {line}: {type(exc).__name__} {exc}; a line needs id, messages (id, role,"
            " content) and questions (text, evidence, answer). A file of LoCoMo itself: --format locomo"
        ) from exc


def _locomo(path: Path) -> list[Conversation]:
    with _open(path) as file:
        try:
            samples = json.load(file)
        except (ValueError, RecursionError) as exc:
            raise DatasetError(f"{path}: not JSON ({exc})") from exc
    if not isinstance(samples, list) or not all(
        isinstance(s, Mapping) and "conversation" in s for s in samples
    ):
        raise DatasetError(f"{path}: a LoCoMo file is a list of samples with `conversation` and `qa`")
    return [_locomo_sample(sample, number) for number, sample in enumerate(samples)]


def _locomo_sample(sample: Mapping[str, Any], number: int) -> Conversation:
    talk = sample["conversation"]
    first = talk.get("speaker_a")
    sessions = sorted((int(m[1]), k) for k in talk if (m := _SESSION.match(k)) and isinstance(talk[k], list))
    messages: list[Message] = []
    for _, key in sessions:
        start = _locomo_time(str(talk.get(f"{key}_date_time", "")))
        for position, turn in enumerate(talk[key]):
            text = turn["text"]
            if turn.get("blip_caption"):
                text = f"{text} [photo: {turn['blip_caption']}]"
            role = "user" if turn["speaker"] == first else "assistant"
            created = None if start is None else start + 60.0 * position
            messages.append(Message(turn["dia_id"], role, (Text(text),), turn["speaker"], created))
    ids = {m.id for m in messages}
    questions = []
    for qa in sample.get("qa", ()):
        joined = " ".join(str(e) for e in qa.get("evidence") or ())
        evidence = tuple(dict.fromkeys(e for e in _EVIDENCE.findall(joined) if e in ids))
        if evidence:
            answer = qa.get("answer", qa.get("adversarial_answer", ""))
            category = CATEGORIES.get(qa.get("category"), str(qa.get("category")))
            questions.append(Question(str(qa["question"]), evidence, str(answer), category))
    return Conversation(str(sample.get("sample_id", number)), tuple(messages), tuple(questions))


def _locomo_time(text: str) -> float | None:
    for form in ("%I:%M %p on %d %B, %Y", "%I:%M %p on %d %B %Y"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            continue
    return None
