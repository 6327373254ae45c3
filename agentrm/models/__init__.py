"""Local execution of language models. Importing this loads no torch: that happens when a model is loaded."""

from agentrm.models.errors import (
    DeviceUnavailable,
    FetchFailed,
    GenerationCancelled,
    MissingDependency,
    ModelCorrupt,
    ModelError,
    ModelNotInstalled,
    PromptTooLong,
    UnknownModel,
    UnsupportedModel,
    UnsupportedSchema,
)
from agentrm.models.generation import Piece, Usage
from agentrm.models.local import LocalModel
from agentrm.models.tools import ToolSpec

__all__ = [
    "DeviceUnavailable",
    "FetchFailed",
    "GenerationCancelled",
    "LocalModel",
    "MissingDependency",
    "ModelCorrupt",
    "ModelError",
    "ModelNotInstalled",
    "Piece",
    "PromptTooLong",
    "ToolSpec",
    "UnknownModel",
    "UnsupportedModel",
    "UnsupportedSchema",
    "Usage",
]
