"""A deterministic LangChain agent over a session store, for tests that stop it and go on in another process.

    python thread_agent.py ROOT EFFECTS run|resume|drain|kill THREAD [FILE]

Prints the transcript, or the hibernation file after `drain`. `kill` dies inside the tool, after its side effect.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from agentrm.context.sessions import SessionStore
from agentrm_langchain.checkpoint import SessionSaver
from agentrm_langchain.hibernation import hibernate_thread, restore_thread
from agentrm_langchain.once import OnceMiddleware


class ScriptedModel(BaseChatModel):
    """Asks for the tool twice, then sums up; what it says depends on the messages alone."""

    control: Any = None  # drained after the first call for a tool

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> ScriptedModel:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        answers = [m.text for m in messages if isinstance(m, ToolMessage)]
        done = len(answers)
        if done < 2:
            call = {"name": "append", "args": {"line": f"line {done}"}, "id": f"call-{done}", "type": "tool_call"}
            message = AIMessage("", tool_calls=[call], id=f"ai-{done}")
        else:
            message = AIMessage(f"done: {answers}", id="ai-end")
        if self.control is not None and done == 0:
            self.control.request_drain("hibernate")
        return ChatResult(generations=[ChatGeneration(message=message)])


def build(store: SessionStore, effects: Path, *, kill: bool = False, control: Any = None) -> Any:
    @tool
    def append(line: str) -> str:
        """Appends a line to the file."""
        with effects.open("a") as file:
            file.write(line + "\n")
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"appended {line}"

    return create_agent(
        ScriptedModel(control=control),
        [append],
        middleware=[OnceMiddleware(store)],
        checkpointer=SessionSaver(store),
    )


def transcript(state: Any) -> list[tuple[str, str, str]]:
    return [(m.type, m.text, str([c["id"] for c in getattr(m, "tool_calls", [])])) for m in state["messages"]]


def main(root: str, effects: str, deed: str, thread: str, file: str = "") -> None:
    store = SessionStore(root)
    control = RunControl() if deed == "drain" else None
    agent = build(store, Path(effects), kill=deed == "kill", control=control)
    config = {"configurable": {"thread_id": thread}}
    question = {"messages": [HumanMessage("go", id="question")]}
    if deed == "drain":
        try:
            agent.invoke(question, config, control=control)
        except GraphDrained:
            print(hibernate_thread(SessionSaver(store), thread))
        return
    if deed == "resume":
        if file:
            restore_thread(SessionSaver(store), Path(file))
        question = None  # type: ignore[assignment]
    print(transcript(agent.invoke(question, config)))


if __name__ == "__main__":
    main(*sys.argv[1:])
