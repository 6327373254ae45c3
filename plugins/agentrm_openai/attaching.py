"""What `rm.attach` does with clients of OpenAI."""

from __future__ import annotations

from typing import Any

from agentrm.adapters import AttachError

__all__ = ["OpenAIAdapter", "adapter"]

_TRANSPORT = "httpx.Client(transport=gated_transport(rm))  # from agentrm_openai; AsyncClient: gated_async_transport"


class OpenAIAdapter:
    """OpenAI, AsyncOpenAI and the classes derived from them. A client of httpx gets a transport when it is made."""

    name = "openai"
    packages = ("openai", "httpx", "httpx2")

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        packages = {cls.__module__.partition(".")[0] for cls in type(x).__mro__}
        if "openai" not in packages:
            raise AttachError(x, "the connections of a client can't be exchanged after the fact", _TRANSPORT)
        if not hasattr(x, "_send_request"):
            why = "it is no client of OpenAI that sends requests (openai 2.30 or later)"
            raise AttachError(x, why, "client = rm.attach(openai.OpenAI())")
        from agentrm_openai.clients import gate_client

        return gate_client(rm, x, **options)


adapter = OpenAIAdapter()
