"""The reference of all configuration keys as Markdown, made from the sections: `python -m
agentrm.config.reference`.

With the path of a page as argument it renews the part of the page between its two marks; without, it prints.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from agentrm.config.configuration import Config
from agentrm.config.gateway import Gateway, GatewayBackend, GatewayKey, GatewayTls
from agentrm.config.prices import Price
from agentrm.config.schema import Section, about, default_of, reader_of
from agentrm.config.sections import (
    Account,
    Backfill,
    Budget,
    Context,
    Limit,
    Pool,
    Reaper,
    Retry,
    Scheduling,
    Tenant,
    Waiting,
)
from agentrm.config.tools import ConflictGroup, Environments, Kind, Tool

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"

PLACES: dict[type[Section], str] = {
    Account: "accounts.NAME",
    Pool: "pools.NAME",
    Limit: "pools.NAME.limits[], accounts.NAME.limits[]",
    Retry: "pools.NAME.retry",
    Tenant: "tenants.NAME",
    Scheduling: "scheduling",
    Waiting: "waiting",
    Backfill: "waiting.backfill",
    Reaper: "reaper",
    Budget: "budgets.SCOPE",
    Price: "prices.PATTERN",
    Context: "context",
    Gateway: "gateway",
    GatewayBackend: "gateway.backends.NAME",
    GatewayKey: "gateway.keys.NAME",
    GatewayTls: "gateway.tls",
    Tool: "tools.PATTERN",
    ConflictGroup: "conflict_groups.NAME",
    Environments: "environments",
    Kind: "environments.kinds.NAME",
}
"""Each section and where it stands, in the order of the page."""


def reference() -> str:
    """One table per section: key, range, default, meaning."""
    return "\n".join(_tables())


def renew(page: str) -> str:
    """`page` with what stands between its marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def _tables() -> Iterator[str]:
    yield from _table("the top level", Config)
    for kind, place in PLACES.items():
        yield from _table(", ".join(f"`{one}`" for one in place.split(", ")), kind)


def _table(place: str, kind: type[Section]) -> Iterator[str]:
    yield f"\n### {place}\n"
    yield "\n".join(line.strip() for line in (kind.__doc__ or "").strip().splitlines()) + "\n"
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for one in fields(kind):  # type: ignore[arg-type]
        allowed = reader_of(kind, one.name).allowed.partition(" with any of the keys ")[0]
        meaning = _cell(about(kind, one.name))
        yield f"| `{one.name}` | {_cell(allowed)} | {_shown(default_of(one))} | {meaning} |"


def _shown(value: object) -> str:
    """A default as it would be written in YAML."""
    if value is None or value == "":
        return "null" if value is None else "needed"
    if isinstance(value, Section):
        return "see below"
    if isinstance(value, tuple):
        return f"`[{', '.join(_shown(entry).strip('`') for entry in value)}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return "`.inf`" if math.isinf(value) else f"`{value:g}`"
    return f"`{value}`" if isinstance(value, (int, str)) else "see below" if value else "`{}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
        target.write_text(renew(target.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(reference())
