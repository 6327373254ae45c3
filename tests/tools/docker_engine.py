"""A small Docker engine on loopback, as strict as the real one where it matters: names are taken once, what is not there
is an error, commands really run (as processes of this machine, in the container's bound folder).

The real SDK talks to it; see `DOCKER_HOST`.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.scheduling.driver import until


class Engine:
    """`fail_starts`: so many starts fail, after the container exists. `fail_execs`: so many commands do."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.execs: dict[str, dict[str, Any]] = {}
        self.created: list[str] = []
        self.images = {"python:3.11"}
        self.fail_starts = self.fail_execs = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.host = f"tcp://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def folder(self, name: str) -> str:
        return str(self.containers[name]["HostConfig"]["Binds"][0].split(":")[0])


def _has_read(port: int) -> bool:
    """Whether the client behind that port has read all that was sent to it."""
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                return int(fields[4].rpartition(":")[2], 16) == 0
    return True


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Quiet."""

        def reply(self, status: int, body: object = None) -> None:
            data = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def missing(self, what: str) -> None:
            self.reply(404, {"message": f"No such {what}"})

        def body(self) -> dict[str, Any]:
            length = int(self.headers.get("Content-Length") or 0)
            read: dict[str, Any] = json.loads(self.rfile.read(length)) if length else {}
            return read

        def route(self) -> None:
            url, body = urlsplit(self.path), self.body()
            path, query = re.sub(r"^/v[\d.]+", "", url.path), parse_qs(url.query)
            name = (re.match(r"/containers/([^/]+)", path) or [None, None])[1]
            if path == "/version":
                self.reply(200, {"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Version": "25"})
            elif path == "/containers/create":
                self.create(query["name"][0], body)
            elif path == "/containers/json":
                listed = [{"Id": one, "SizeRw": 4096} for one in engine.containers]
                self.reply(200, listed)
            elif name is not None and name not in engine.containers:
                self.missing("container")
            elif path.endswith("/start") and name is not None:
                if engine.fail_starts:
                    engine.fail_starts -= 1
                    self.reply(500, {"message": "driver failed programming external connectivity"})
                    return
                engine.containers[name]["State"]["Status"] = "running"
                self.reply(204)
            elif path.endswith("/top"):
                self.reply(200, {"Titles": ["PID"], "Processes": [["1"]]})
            elif path.endswith("/exec") and name is not None:
                if engine.containers[name]["State"]["Status"] != "running":
                    self.reply(409, {"message": "container is not running"})
                    return
                id = f"exec{len(engine.execs)}"
                engine.execs[id] = {"container": name, "ExitCode": None, **body}
                self.reply(201, {"Id": id})
            elif name is not None and self.command == "DELETE":
                del engine.containers[name]
                self.reply(204)
            elif name is not None:
                self.reply(200, engine.containers[name])
            elif path.startswith("/exec/"):
                self.exec(path.split("/")[2], path.split("/")[3], body)
            else:
                self.missing(path)

        def create(self, name: str, body: dict[str, Any]) -> None:
            if body["Image"] not in engine.images:
                self.missing("image")
            elif name in engine.containers:
                self.reply(409, {"message": "name in use"})
            else:
                body |= {"Id": name, "Name": f"/{name}", "State": {"Status": "created"}, "Config": {"Labels": body["Labels"]}}
                engine.containers[name] = body
                engine.created.append(name)
                self.reply(201, {"Id": name})

        def exec(self, id: str, verb: str, body: dict[str, Any]) -> None:
            one = engine.execs[id]
            if verb == "json":
                self.reply(200, {"ExitCode": one["ExitCode"]})
                return
            if engine.fail_execs:
                engine.fail_execs -= 1
                self.reply(400, {"message": "no such user"})
                return
            variables = dict(item.split("=", 1) for item in one.get("Env") or ())
            process = subprocess.Popen(
                one["Cmd"], cwd=engine.folder(one["container"]), env={**os.environ, **variables},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            if body.get("Detach"):
                self.reply(200)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.docker.multiplexed-stream")
            self.end_headers()
            out, err = process.communicate()
            until(lambda: _has_read(self.client_address[1]))  # the SDK loses frames that come in one piece with the head
            one["ExitCode"] = process.returncode if process.returncode >= 0 else 128 - process.returncode
            for stream, data in ((1, out), (2, err)):
                if data:
                    self.wfile.write(struct.pack(">BxxxL", stream, len(data)) + data)
            self.close_connection = True

        do_GET = do_POST = do_DELETE = route

    return Handler
