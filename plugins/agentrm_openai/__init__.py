"""agentrm without a framework: each request of a client of OpenAI, or of any client over httpx, takes a lease.

    client = rm.attach(openai.OpenAI())                                      # AsyncOpenAI, AzureOpenAI too
    client = anthropic.Anthropic(http_client=httpx.Client(transport=gated_transport(rm)), max_retries=0)

Importing this package loads no client; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.adapters import lazy

if TYPE_CHECKING:
    from agentrm_openai.attaching import adapter
    from agentrm_openai.clients import gate_client
    from agentrm_openai.transports import gated_async_transport, gated_transport

_HOME = {
    "adapter": "attaching",
    "gate_client": "clients",
    "gated_async_transport": "transports",
    "gated_transport": "transports",
}
__all__ = ["adapter", "gate_client", "gated_async_transport", "gated_transport"]

__getattr__ = lazy(__name__, _HOME, extra="openai")
