"""Text to tokens and back: a byte-level BPE tokenizer with a chat template.

Tokens are split as llama.cpp splits them (the reference for GGUF files): the `smollm` vocabularies take
digits one by one, and whitespace in front of a digit stays whole. Marks such as `<|im_end|>` count as marks
only where the template put them; inside a message's content they are plain text, so that content cannot
forge a turn.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.models.errors import MissingDependency, ModelCorrupt, UnsupportedModel

if TYPE_CHECKING:
    import tokenizers

_PRETOKENIZERS = ("smollm", "gpt-2")
_SPECIAL_TOKEN_TYPES = (3, 4)  # control and user defined, of GGUF's tokenizer.ggml.token_type
_QUOTED = "\ue000"  # stands inside a mark that is only text while a template is rendered

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Immutable, so that any number of threads may use one.

    `encode_plain` turns text without marks into ids; `token_bytes` gives what each id stands for, None for
    marks, which have no text. `end_ids` end a turn. Both directions are exact: decoding what was encoded
    gives the text.
    """

    encode_plain: Callable[[str], list[int]]
    token_bytes: tuple[bytes | None, ...]
    marks: Mapping[str, int]
    end_ids: frozenset[int]
    template: str
    bos: str = ""
    eos: str = ""

    def __len__(self) -> int:
        return len(self.token_bytes)

    def encode(self, text: str, *, marks: bool = False) -> list[int]:
        """Ids of the text. With `marks`, marks such as `<|im_end|>` become their one id; else they are
        plain text.
        """
        if not marks or not self.marks:
            return self.encode_plain(text)
        ids: list[int] = []
        for part in self._mark_pattern().split(text):
            if part in self.marks:
                ids.append(self.marks[part])
            elif part:
                ids += self.encode_plain(self._unquote(part))
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> list[int]:
        """Ids of a conversation (`role` and `content` of each message); with `answer`, up to where the
        answer begins.
        """
        return self.encode(self.render(messages, answer=answer), marks=True)

    def render(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> str:
        """The template's text of a conversation, marks inside contents quoted."""
        quoted = [{"role": message["role"], "content": self._quote(message["content"])} for message in messages]
        text: str = _compile(self.template).render(
            messages=quoted, add_generation_prompt=answer, bos_token=self.bos, eos_token=self.eos
        )
        return text

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without marks; a broken character reads as U+FFFD."""
        return b"".join(self.token_bytes[i] or b"" for i in ids).decode("utf-8", "replace")

    def detokenizer(self) -> codecs.IncrementalDecoder:
        """A fresh decoder for one stream of `token_bytes`: it holds back the bytes of an unfinished
        character.
        """
        return codecs.getincrementaldecoder("utf-8")("replace")

    def _mark_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.marks, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def _quote(self, text: str) -> str:
        if not self.marks:
            return text
        return self._mark_pattern().sub(lambda found: found[0][0] + _QUOTED + found[0][1:], text)

    def _unquote(self, text: str) -> str:
        if _QUOTED not in text:
            return text
        quoted = "|".join(re.escape(mark[0] + _QUOTED + mark[1:]) for mark in self.marks)
        return re.sub(quoted, lambda found: found[0].replace(_QUOTED, "", 1), text)


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes. Raises UnsupportedModel for other kinds than byte-level
    BPE.
    """
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedModel("tokenizer", kind, "gpt2 (byte-level BPE)")
    if split not in _PRETOKENIZERS:
        raise UnsupportedModel("pre-tokenizer", split, ", ".join(_PRETOKENIZERS))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    marks = {token: i for i, token in enumerate(tokens) if types[i] in _SPECIAL_TOKEN_TYPES}
    library = _library()
    backend = library.Tokenizer(
        library.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]],
        )
    )
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = (
        library.pre_tokenizers.Sequence([library.pre_tokenizers.Digits(individual_digits=True), byte_level])
        if split == "smollm"
        else byte_level
    )
    eos = int(metadata["tokenizer.ggml.eos_token_id"])
    ends = {eos, *(int(metadata[key]) for key in ("tokenizer.ggml.eot_token_id",) if key in metadata)}
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return Tokenizer(
        encode_plain=_plain(backend),
        token_bytes=tuple(None if token in marks else _to_bytes(token) for token in tokens),
        marks=marks,
        end_ids=frozenset(ends | {i for mark, i in marks.items() if mark in ("<|im_end|>", "<|endoftext|>")}),
        template=metadata.get("tokenizer.chat_template", CHATML),
        bos=tokens[bos] if bos is not None else "",
        eos=tokens[eos],
    )


def from_directory(folder: Path) -> Tokenizer:
    """The tokenizer of a model directory (tokenizer.json, tokenizer_config.json). Byte-level BPE only."""
    path = folder / "tokenizer.json"
    try:
        described = json.loads(path.read_text("utf-8"))
        config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        generation = folder / "generation_config.json"
        ends = json.loads(generation.read_text("utf-8")).get("eos_token_id") if generation.exists() else None
    except ValueError as error:
        raise ModelCorrupt(folder, f"bad JSON ({error})", "a tokenizer", "get the files again") from error
    decoder = described.get("decoder") or {}
    parts = [decoder, *decoder.get("decoders", ())]
    if described["model"].get("type") != "BPE" or not any(part.get("type") == "ByteLevel" for part in parts):
        raise UnsupportedModel("tokenizer", described["model"].get("type"), "byte-level BPE")
    backend = _library().Tokenizer.from_file(str(path))
    backend.encode_special_tokens = True  # its own search for marks is off: marks are found in `encode`
    marks = {added["content"]: added["id"] for added in described["added_tokens"] if added["special"]}
    own_text = {added["id"]: added["content"].encode() for added in described["added_tokens"]}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces: list[bytes | None] = [b""] * (max(vocabulary.values()) + 1)
    for token, i in vocabulary.items():
        pieces[i] = None if token in marks else own_text.get(i) or _to_bytes(token)
    eos = _text_of(config.get("eos_token"))
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text("utf-8") if template_file.exists() else config.get("chat_template")
    return Tokenizer(
        encode_plain=_plain(backend),
        token_bytes=tuple(pieces),
        marks=marks,
        end_ids=frozenset(listed) | ({marks[eos]} if eos in marks else set()),
        template=template if isinstance(template, str) else CHATML,
        bos=_text_of(config.get("bos_token")),
        eos=eos,
    )


def toy() -> Tokenizer:
    """One token per byte and the three marks of ChatML: for tests of mechanics, with nothing to install."""
    marks = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
    return Tokenizer(
        encode_plain=lambda text: list(text.encode("utf-8")),
        token_bytes=(*(bytes([i]) for i in range(256)), None, None, None),
        marks=marks,
        end_ids=frozenset({256, 258}),
        template=CHATML,
        eos="<|im_end|>",
    )


def _plain(backend: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    return encode


def _text_of(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_bytes(token: str) -> bytes:
    return bytes(_BYTE_OF[character] for character in token)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: bytes that print stand for themselves, the others move up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.pre_tokenizers
    except ImportError as error:
        raise MissingDependency("tokenizers") from error
    return tokenizers


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> Any:
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingDependency("jinja2") from error
    # A template is part of a downloaded file, so it runs in the sandbox. The two options are those of
    # transformers.
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
