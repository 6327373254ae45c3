"""Local execution of language models. Importing this loads no torch: that happens when a model is loaded."""

from agentrm.models.backend import LocalBackend
from agentrm.models.cores import Choice, Core, CorePool, EngineCore, OpenAICore, Traits
from agentrm.models.engine.snapshot import Snapshot
from agentrm.models.errors import (
    DeviceUnavailable,
    EngineClosed,
    FetchFailed,
    GenerationCancelled,
    MissingDependency,
    ModelCorrupt,
    ModelError,
    ModelNotInstalled,
    OutOfBlocks,
    ProgramBusy,
    PromptTooLong,
    SnapshotCorrupt,
    SnapshotMismatch,
    UnknownModel,
    UnsupportedModel,
    UnsupportedSchema,
    WaitsForItself,
)
from agentrm.models.generation import Piece, Usage
from agentrm.models.generations import Answer, BeamSearch, Generation
from agentrm.models.local import LocalEngine
from agentrm.models.programs import Program
from agentrm.models.tools import ToolSpec

__all__ = [
    "Answer",
    "BeamSearch",
    "Choice",
    "Core",
    "CorePool",
    "DeviceUnavailable",
    "EngineClosed",
    "EngineCore",
    "FetchFailed",
    "Generation",
    "GenerationCancelled",
    "LocalBackend",
    "LocalEngine",
    "MissingDependency",
    "ModelCorrupt",
    "ModelError",
    "ModelNotInstalled",
    "OpenAICore",
    "OutOfBlocks",
    "Piece",
    "Program",
    "ProgramBusy",
    "PromptTooLong",
    "Snapshot",
    "SnapshotCorrupt",
    "SnapshotMismatch",
    "ToolSpec",
    "Traits",
    "UnknownModel",
    "UnsupportedModel",
    "UnsupportedSchema",
    "Usage",
    "WaitsForItself",
]
