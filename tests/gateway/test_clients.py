"""Clients that people use, as they are, against the gateway in a process of its own (`agentrm serve`)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrm import ConfigError
from agentrm.cli.serve import configured
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest, ToolCall

openai = pytest.importorskip("openai")

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def behaviour(request: StubRequest) -> Behaviour:
    return Behaviour(output_tokens=6, tool_calls=(ToolCall("weather", {"city": "Bern"}),), text="It is sunny in Bern.")


class Served:
    """`agentrm serve` before two stub engines."""

    def __init__(self, engines: list[StubProvider], *arguments: str) -> None:
        self.engines = engines
        line = [sys.executable, "-m", "agentrm", "serve", "--port", "0", *arguments]
        line += [word for engine in engines for word in ("--backend", engine.base_url)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.base_url = self.process.stdout.readline().split()[-1]

    def stop(self) -> str:
        """Ends it as an operator does; what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def served() -> Iterator[Served]:
    with StubProvider(behaviour) as one, StubProvider(behaviour) as two:
        made = Served([one, two])
        try:
            yield made
        finally:
            made.process.kill()
            made.process.communicate()


def test_the_openai_client(served: Served) -> None:
    with openai.OpenAI(base_url=served.base_url, api_key="any", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "How is the weather?"}]}
        answer = client.chat.completions.create(**asked, extra_body={"program_id": "p"})
        assert answer.choices[0].message.content == "It is sunny in Bern." and answer.usage.total_tokens > 0
        stream = list(client.chat.completions.create(**asked, stream=True, extra_body={"program_id": "p"}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "It is sunny in Bern."
        assert all(chunk.usage is None for chunk in stream)
        stream = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert stream[-1].usage.total_tokens > 0
        called = client.chat.completions.create(**asked, tools=[TOOL]).choices[0].message.tool_calls
        assert called[0].function.name == "weather" and called[0].function.arguments == '{"city": "Bern"}'
        assert [model.id for model in client.models.list()] == ["stub"]
    of = [sum(record.outcome == "answered" for record in engine.log) for engine in served.engines]
    assert sum(of) == 4 and max(of) >= 2
    assert served.stop().count("draining") == 1 and served.process.returncode == 0


def test_the_openai_client_reads_our_refusals_and_broken_streams() -> None:
    with StubProvider(Behaviour("drop", after=2, output_tokens=5)) as engine:
        made = Served([engine])
        try:
            with openai.OpenAI(base_url=made.base_url, api_key="any", max_retries=0) as client:
                asked: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "x"}]}
                with pytest.raises(openai.APIError, match="incomplete"):
                    list(client.chat.completions.create(**asked, stream=True))
                with pytest.raises(openai.BadRequestError, match="priority"):
                    client.chat.completions.create(**asked, extra_headers={"X-AgentRM-Priority": "root"})
        finally:
            made.process.kill()
            made.process.communicate()


def test_langchain(served: Served) -> None:
    agents = pytest.importorskip("langchain.agents")
    chat = pytest.importorskip("langchain_openai")
    tools = pytest.importorskip("langchain_core.tools")
    seen = []

    @tools.tool
    def weather(city: str) -> str:
        """The weather of a city."""
        seen.append(city)
        return "sunny"

    model = chat.ChatOpenAI(
        model="stub", base_url=served.base_url, api_key="any", extra_body={"program_id": "langchain"}, streaming=True
    )
    agent = agents.create_agent(model, tools=[weather])
    answer = agent.invoke({"messages": [("user", "How is the weather in Bern?")]})
    assert seen == ["Bern"] and answer["messages"][-1].content == "It is sunny in Bern."
    assert sorted(len(engine.log) for engine in served.engines) == [0, 2]  # one program, one engine


async def test_autogen(served: Served) -> None:
    agents = pytest.importorskip("autogen_agentchat.agents")
    models = pytest.importorskip("autogen_ext.models.openai")

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    client = models.OpenAIChatCompletionClient(
        model="stub", base_url=served.base_url, api_key="any",
        model_info={"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False},
        user="autogen",
    )  # fmt: skip
    agent = agents.AssistantAgent("a", client, tools=[weather], reflect_on_tool_use=True)
    result = await agent.run(task="How is the weather in Bern?")
    assert result.messages[-1].content == "It is sunny in Bern."
    assert sorted(len(engine.log) for engine in served.engines) == [0, 2]
    await client.close()


def test_crewai(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crewai = pytest.importorskip("crewai")
    monkeypatch.chdir(tmp_path)
    llm = crewai.LLM(model="openai/stub", base_url=served.base_url, api_key="any", extra_headers={"X-AgentRM-Program": "crew"})
    answer = llm.call([{"role": "user", "content": "How is the weather in Bern?"}])
    assert answer == "It is sunny in Bern."


def test_engines_of_the_command_line_stand_beside_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("gateway: {backends: {vllm-0: {url: 'http://127.0.0.1:1'}}}")
    more = [f"vllm=http://127.0.0.1:{port}" for port in (2, 3)]
    config = configured(Namespace(config=str(file), backend=more, host=None, port=None))
    assert [one.url[-1] for one in config.gateway.backends.values()] == ["1", "2", "3"]


def test_a_configuration_that_cannot_work_is_refused_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("gateway: {host: 0.0.0.0}")
    for arguments in (["--config", str(tmp_path / "c.yaml")], ["--backend", "nonsense"], []):
        done = subprocess.run([sys.executable, "-m", "agentrm", "serve", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and "gateway." in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("given", ["vllm", "vllm=", "vllm=localhost:8000", "=http://a", "", "http://", "vllm=http://a:b"])
def test_an_engine_of_the_command_line_with_a_part_missing_is_said_as_it_was_typed(given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--backend: {given!r}") + ".*vllm=http://127.0.0.1:8000"):
        configured(Namespace(config=None, backend=[given], host=None, port=None))


def test_without_an_engine_the_line_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"--backend is missing; needed: an engine, such as vllm=http"):
        configured(Namespace(config=None, backend=[], host=None, port=None))
