"""`agentrm sessions`: what is stored, what was said, putting sessions to sleep and waking them, checking
them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrm.context.messages import Message
from agentrm.context.sessions import SessionStore, verify
from agentrm.errors import ConfigError, shown
from agentrm.storage import AesGcmSealer

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Adds `sessions` with its own subcommands."""
    parser = commands.add_parser(
        "sessions", help="list, show, search, hibernate, restore, export, verify sessions"
    )
    _add_options(parser)
    parser.set_defaults(store=None, tenant="default", key_file=[], json=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    actions.add_parser("list", help="all sessions with status, size and age")
    show = actions.add_parser("show", help="one session: its state and its messages")
    show.add_argument("session")
    show.add_argument(
        "--context", action="store_true", help="what the model would see, instead of all messages"
    )
    show.add_argument("--last", type=_count, metavar="N", help="only the last N messages")
    search = actions.add_parser("search", help="messages that hold these words, in one or all sessions")
    search.add_argument("query")
    search.add_argument("--session", help="in this session only")
    search.add_argument("-k", type=_count, default=10, help="how many per session (default: %(default)s)")
    hibernate = actions.add_parser("hibernate", help="put a session to sleep; prints its file")
    hibernate.add_argument("session")
    restore = actions.add_parser("restore", help="bring a session back from its file")
    restore.add_argument(
        "source", help="a hibernation file, or the name of a session hibernated in this store"
    )
    restore.add_argument("--as", dest="as_session", metavar="NAME", help="under another name")
    restore.add_argument(
        "--takeover", action="store_true", help="from an owner elsewhere that is known to be gone"
    )
    export = actions.add_parser("export", help="the messages of a session")
    export.add_argument("session")
    export.add_argument(
        "--format", choices=["jsonl", "openai", "text"], default="jsonl",
        help="jsonl: every message as stored; openai: a list in OpenAI chat format; text: to read",
    )  # fmt: skip
    export.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    check = actions.add_parser("verify", help="check files and contents; exit status 1 if anything is wrong")
    check.add_argument("session", nargs="?", help="default: all sessions of the tenant")
    for action in actions.choices.values():
        _add_options(action)


def _count(text: str) -> int:
    """How many to print; argparse names the option in front of the error."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not allowed; allowed: a whole number, 1 or more")
    return value


def _add_options(parser: argparse.ArgumentParser) -> None:
    """What holds for every action, and may stand before or behind its name."""
    unset = argparse.SUPPRESS  # or what stands before the action would be lost
    parser.add_argument("--store", metavar="DIR", default=unset, help="the store's folder (default: $AGENTRM_STORE)")
    parser.add_argument("--tenant", default=unset, help="whose sessions (default: the tenant default)")
    parser.add_argument(
        "--key-file", metavar="ID=FILE", action="append", default=unset,
        help="a key of an encrypted store: its id and a file of 16, 24 or 32 bytes, or digits (hex) and a line break",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", default=unset, help="JSON lines instead of text")


def _sealer(pairs: Iterable[str]) -> AesGcmSealer | None:
    keys: dict[str, bytes] = {}
    for pair in pairs:
        key_id, _, path = pair.partition("=")
        if not key_id or not path:
            raise ConfigError("--key-file", pair, "ID=FILE")
        data = Path(path).read_bytes()
        text = data.strip()
        if len(text) in (32, 48, 64) and all(byte in b"0123456789abcdefABCDEF" for byte in text):
            if len(data) == 32:
                allowed = (
                    "a file that is read in one way only: 32 hexadecimal digits alone may be a key of 32 bytes, or the "
                    "digits of one of 16. End the digits with a line break, or write the 32 bytes as 64 digits"
                )
                raise ConfigError("--key-file", pair, allowed)
            data = bytes.fromhex(text.decode())
        keys[key_id] = data
    return AesGcmSealer(keys) if keys else None


def _store(arguments: argparse.Namespace) -> SessionStore:
    folder = arguments.store or os.environ.get("AGENTRM_STORE")
    if not folder:
        raise ConfigError.missing("--store", "the folder of a store, there or in $AGENTRM_STORE")
    if arguments.action != "restore" and not Path(folder).is_dir():
        raise ConfigError("--store", folder, "an existing folder")
    return SessionStore(folder, sealer=_sealer(arguments.key_file))


def run(arguments: argparse.Namespace) -> int:
    """Runs the chosen action; 0 if all went well."""
    with _store(arguments) as store:
        return int(_ACTIONS[arguments.action](store, arguments))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _line(message: Message, width: int = 200) -> str:
    said = message.text.replace("\n", " ")
    calls = " ".join(f"{call.name}({call.arguments})" for call in message.calls)
    text = " ".join(filter(None, (said, calls and f"-> {calls}")))
    return f"{message.role:9} {text if len(text) <= width else text[: width - 3] + '...'}"


def _list(store: SessionStore, arguments: argparse.Namespace) -> int:
    cards = store.list(tenant=arguments.tenant)
    if arguments.json:
        for card in cards:
            print(json.dumps({name: getattr(card, name) for name in card.__slots__}))
        return 0
    if not cards:
        print(f"no sessions of tenant {arguments.tenant!r} in {store.layout.root}")
        return 0
    wide = max(len(card.session) for card in cards)
    for card in cards:
        asleep = "asleep" if card.hibernated else ""
        print(
            f"{card.session:{wide}}  {card.status:17} {asleep:6} {card.messages:6} messages  "
            f"{_when(card.last_active)}"
        )
    return 0


def _show(store: SessionStore, arguments: argparse.Namespace) -> int:
    held = store.read(arguments.session, tenant=arguments.tenant)
    messages = held.tier0() if arguments.context else held.messages()
    if arguments.last is not None:
        messages = messages[-arguments.last :]
    if arguments.json:
        for message in messages:
            print(json.dumps(message.to_json(), ensure_ascii=False))
        return 0
    state = held.state
    print(f"session {held.id} of tenant {held.tenant}: {held.status}")
    print(f"{len(held)} messages, {held.records} records, {state.views} compactions")
    print(f"in context: {len(state.view)}, queued: {len(state.queue)}")
    print(f"created {_when(state.created)}, last active {_when(state.last_at)}")
    for call in state.pending.values():
        print(f"open call {call.id}: {call.state}")
    for warning in held.warnings:
        print(f"warning: {warning}")
    for message in messages:
        print(_line(message))
    return 0


def _names(store: SessionStore, arguments: argparse.Namespace) -> list[str]:
    if arguments.session:
        return [arguments.session]
    return [card.session for card in store.list(tenant=arguments.tenant)]


def _search(store: SessionStore, arguments: argparse.Namespace) -> int:
    names = (
        [arguments.session] if arguments.session else [c.session for c in store.list(tenant=arguments.tenant)]
    )
    found = 0
    for name in names:
        held = store.read(name, tenant=arguments.tenant)
        for hit in held.search(arguments.query, arguments.k):
            found += 1
            message = held.recall(hit.id)
            if arguments.json:
                print(json.dumps({"session": name, "id": hit.id, "score": hit.score, "text": message.text}))
            else:
                print(f"{name}  {hit.id}  {_line(message, 120)}")
    return 0 if found else 1


def _hibernate(store: SessionStore, arguments: argparse.Namespace) -> int:
    print(store.open(arguments.session, tenant=arguments.tenant, create=False).hibernate())
    return 0


def _restore(store: SessionStore, arguments: argparse.Namespace) -> int:
    given = Path(arguments.source)
    source: str | Path = given if given.is_file() else arguments.source
    tenant = None if isinstance(source, Path) and arguments.tenant == "default" else arguments.tenant
    with store.restore(
        source, tenant=tenant, as_session=arguments.as_session, takeover=arguments.takeover
    ) as session:
        print(f"{session.name}: {session.status}, {len(session)} messages")
        found = session.recovered
        for warning in found.warnings:
            print(f"warning: {warning}")
        for what, ids in (
            ("outcome unknown", found.interrupted),
            ("may run again", found.rerunnable),
            ("waits for approval", found.awaiting_approval),
            ("expired", found.expired),
            ("lost resource", found.lost),
        ):
            for one in ids:
                print(f"{what}: {one}")
    return 0


def _export(store: SessionStore, arguments: argparse.Namespace) -> int:
    store.allow("export", arguments.tenant, arguments.session)
    held = store.read(arguments.session, tenant=arguments.tenant)
    if arguments.format == "jsonl":
        text = "".join(json.dumps(m.to_json(), ensure_ascii=True) + "\n" for m in held.verbatim())
    elif arguments.format == "openai":
        from agentrm.context.convert_openai import to_openai

        text = json.dumps(to_openai(held.messages()), indent=1) + "\n"
    else:
        text = "".join(_line(m, 1 << 30) + "\n" for m in held.messages())
    if arguments.output:
        Path(arguments.output).write_text(text, "utf-8", "surrogatepass")
    else:
        sys.stdout.write(text)
    return 0


def _verify(store: SessionStore, arguments: argparse.Namespace) -> int:
    names = (
        [arguments.session] if arguments.session else [c.session for c in store.list(tenant=arguments.tenant)]
    )
    wrong = 0
    for name in names:
        found = verify(store, name, tenant=arguments.tenant)
        wrong += bool(found.problems)
        if arguments.json:
            print(json.dumps({field: getattr(found, field) for field in found.__slots__}))
            continue
        print(f"{name}: {'damaged' if found.problems else 'sound'}, {found.records} records")
        for line in (*(f"  {p}" for p in found.problems), *(f"  note: {n}" for n in found.notes)):
            print(line)
    return 1 if wrong else 0


_ACTIONS = {
    "list": _list,
    "show": _show,
    "search": _search,
    "hibernate": _hibernate,
    "restore": _restore,
    "export": _export,
    "verify": _verify,
}
