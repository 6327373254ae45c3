"""Environments in containers, through the SDK of Docker (the extra `docker`), which is loaded when the first is made.

Options of a kind: `image` (needed), `command` (what keeps the container alive; default: sleep), `user` (default: the
owner of this process, so that the files can be removed), `memory` and `network_mode` as Docker has them. The folder of
the environment's files is `/work` in the container, its ports are published on loopback.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from agentrm.errors import AgentRMError, ConfigError
from agentrm.tools.local import disk_bytes, remove_folder
from agentrm.tools.place import Completed, Place, Usage
from agentrm.tools.processes import MARK, readable

__all__ = ["DockerProvider"]

LABEL = "agentrm.environment"
RUN = "AGENTRM_RUN"
WORK = "/work"
LAST_OUTPUT_S = 5.0
"""Seconds that the engine is given to hand out the rest of a killed command's output."""
_END_RUN = (
    "for e in /proc/[0-9]*/environ; do p=${e#/proc/}; p=${p%/environ}; "
    f'[ "$p" != $$ ] && tr "\\0" "\\n" <"$e" 2>/dev/null | grep -qx "{RUN}=$1" && kill -"$2" "$p"; done; true'
)


class DockerProvider:
    """See the module. A container has the environment's id as its name before it exists, so whatever a failed start
    left behind is found by it."""

    def __init__(self) -> None:
        """Asks the engine which version it speaks. Raises AgentRMError if it is not there, or its SDK is not."""
        self._runs = count(1)
        self._client = _client()

    def create(self, place: Place) -> None:
        image = place.options.get("image")
        if not image:
            raise ConfigError(f"environments.kinds.{place.kind}.options.image", image, "the name of an image")
        place.files.mkdir(parents=True, exist_ok=True)
        asked = {
            "command": shlex.split(place.options.get("command", "sleep infinity")),
            "name": place.id,
            "labels": {LABEL: place.id},
            "volumes": {str(place.files): {"bind": WORK, "mode": "rw"}},
            "working_dir": WORK,
            "environment": {**place.variables, MARK: place.id},
            "ports": {f"{port}/tcp": ("127.0.0.1", port) for port in place.ports},
            "user": place.options.get("user", f"{os.getuid()}:{os.getgid()}"),
            "init": True,
        }
        asked |= {
            theirs: place.options[ours]
            for ours, theirs in (("memory", "mem_limit"), ("network_mode", "network_mode"))
            if ours in place.options
        }
        client = self._client
        try:
            container = client.containers.create(image, **asked)
        except _errors().ImageNotFound:
            client.images.pull(image)
            container = client.containers.create(image, **asked)
        container.start()

    def remove(self, place: Place) -> None:
        with suppress(_errors().NotFound):
            self._client.containers.get(place.id).remove(force=True, v=True)
        remove_folder(place.folder)

    def is_there(self, place: Place) -> bool:
        try:
            return bool(self._client.containers.get(place.id).status == "running")
        except _errors().NotFound:
            return False

    def run(self, place: Place, words: Sequence[str], timeout_s: float | None, stop_fd: int) -> Completed:
        api, run, began = self._client.api, f"{place.id}/{next(self._runs)}", time.monotonic()
        exec_id = self._exec(place, words, run)
        got: list[tuple[bytes | None, bytes | None]] = []
        failed: list[Exception] = []
        reading, writing = os.pipe()

        def read() -> None:
            try:
                got.append(api.exec_start(exec_id, demux=True))
            except Exception as error:  # noqa: BLE001 - raised where the command is waited for
                failed.append(error)
            finally:
                os.close(writing)  # the other end becomes readable

        threading.Thread(target=read, name="agentrm-docker-exec", daemon=True).start()
        try:
            ready = readable((reading, stop_fd), timeout_s)
            timed_out = not ready
            self._end_run(place, run, "TERM" if place.grace_s else "KILL")
            over = reading in ready or _closed(reading, place.grace_s)
            self._end_run(place, run, "KILL")
            if not over:
                _closed(reading, LAST_OUTPUT_S)
        finally:
            os.close(reading)
        if failed:
            raise failed[0]
        out, err = got[0] if got else (b"", b"")
        code = api.exec_inspect(exec_id)["ExitCode"]
        took = time.monotonic() - began
        return Completed(-9 if code is None else int(code), _text(out), _text(err), timed_out, took)

    def serve(self, place: Place, words: Sequence[str]) -> None:
        self._client.api.exec_start(self._exec(place, words, f"{place.id}/0"), detach=True)

    def usage(self, place: Place) -> Usage:
        client = self._client
        try:
            container = client.containers.get(place.id)
            top = container.top()["Processes"] or [] if container.status == "running" else []
        except _errors().NotFound:
            return Usage(disk_bytes(place.folder), 0, ())
        listed = client.api.containers(all=True, size=True, filters={"label": f"{LABEL}={place.id}"})
        written = sum(int(one.get("SizeRw") or 0) for one in listed)
        return Usage(disk_bytes(place.folder) + written, len(top), place.ports)

    def _exec(self, place: Place, words: Sequence[str], run: str) -> str:
        variables = {**place.variables, MARK: place.id, RUN: run}
        made = self._client.api.exec_create(place.id, place.filled(words), environment=variables, workdir=WORK)
        return str(made["Id"])

    def _end_run(self, place: Place, run: str, name: str) -> None:
        """Ends what the run started, in the container, where its processes are."""
        self._client.containers.get(place.id).exec_run(["sh", "-c", _END_RUN, "sh", run, name])


def _client() -> Any:
    try:
        return _docker().from_env()
    except _errors().DockerException as error:
        raise AgentRMError(
            f"Docker's engine can't be reached ({error}): start it, or say in DOCKER_HOST where it is"
        ) from error


def _closed(reading: int, within_s: float) -> bool:
    return bool(readable((reading,), within_s))


def _docker() -> Any:
    try:
        import docker
    except ImportError as error:
        raise AgentRMError("environments in containers need Docker's SDK: pip install 'agentrm[docker]'") from error
    return docker


def _errors() -> Any:
    return _docker().errors


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")
