"""The evaluation command reads its formats, reports its rows and refuses what it cannot do."""

from __future__ import annotations

import argparse
import json

import pytest

from agentrm.cli import evaluate
from agentrm.errors import AgentRMError
from agentrm.evaluation.synthetic import SESSION_KINDS, generate
from agentrm.evaluation.trajectories import carried_values
from tests.context.histories import A


def run(*line: str) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_parser(parser.add_subparsers(dest="command"))
    return evaluate.run(parser.parse_args(["evaluate", *line, "--quiet"]))


@pytest.fixture
def talk(tmp_path):
    messages = [
        {
            "id": f"m{n}",
            "role": "user" if n % 2 else "assistant",
            "content": f"Some small talk number {n} about weather.",
        }
        for n in range(40)
    ]
    messages[7]["content"] = "Ada moved to Lisbon in March and opened a bakery called Heron."
    questions = [{"text": "Which bakery did Ada open?", "evidence": ["m7"], "answer": "Heron"}]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": messages, "questions": questions}) + "\n")
    return path


def test_conversations_are_evaluated(talk, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run("context", "--dataset", str(talk), "--budget", "0.2", "--json", str(out),
               "--method", "agentrm-no-faiss,keep-last,first-last,idf,bm25,bm25-neighbours,memgpt,none,belady") == 0  # fmt: skip
    rows = {
        (r["method"], r["query_known"]): r
        for r in json.loads(out.read_text())["results"]
        if r["category"] == "all"
    }
    assert rows["keep-last", False]["evidence"] == 0 and rows["belady", False]["evidence"] == 1
    assert rows["bm25", True]["evidence"] == 1 and rows["agentrm-no-faiss", True]["evidence"] == 1
    assert rows["agentrm-no-faiss", False]["evidence"] == 1
    assert all(r["tokens"] <= 0.2 for (m, _), r in rows.items() if m != "none")
    assert "agentrm-no-faiss" in capsys.readouterr().out


def test_trajectories_are_evaluated(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "fix it"}]
    for n in range(30):
        call = {
            "id": "c",
            "name": "bash",
            "arguments": json.dumps({"command": f"cat src/part_{max(0, n - 9)}.py"}),
        }
        messages.append({"role": "assistant", "content": f"step {n}", "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": "c", "content": f"src/part_{n}.py " + "output text " * 60}
        )
    path, out = tmp_path / "runs.jsonl", tmp_path / "out.json"
    path.write_text(json.dumps({"id": "r", "messages": messages}) + "\n")
    assert run("trajectories", "--dataset", str(path), "--limit", "1500", "--json", str(out),
               "--method", "none,keep-last,agentrm-no-faiss,belady") == 0  # fmt: skip
    rows = {r["method"]: r for r in json.loads(out.read_text())["results"]}
    assert rows["agentrm-no-faiss"]["invalid"] == 0 and rows["agentrm-no-faiss"]["carried"] == 1
    assert rows["none"]["compactions"] == 0 and rows["agentrm-no-faiss"]["compactions"] > 0


@pytest.mark.parametrize(
    "line",
    [
        ("context", "--dataset", "nowhere.json", "--method", "idf"),
        ("context", "--dataset", "nowhere.json", "--method", "magic"),
        ("context", "--dataset", "nowhere.json", "--budget", "7"),
        ("trajectories", "--dataset", "nowhere.json", "--limit", "-1"),
    ],
)
def test_what_cannot_be_done_is_said(line):
    with pytest.raises(AgentRMError):
        run(*line)


@pytest.mark.parametrize("kind", ["context", "trajectories"])
def test_a_data_set_of_nothing_is_refused(tmp_path, kind):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(AgentRMError, match="empty.jsonl holds no"):
        run(kind, "--dataset", str(tmp_path / "empty.jsonl"))


def test_evidence_that_is_no_message_is_refused(tmp_path):
    path = tmp_path / "talks.jsonl"
    message = {"id": "m1", "role": "user", "content": "My dog is Rex."}
    path.write_text(json.dumps({"messages": [message], "questions": [{"text": "Who?", "evidence": ["m2"]}]}) + "\n")
    with pytest.raises(AgentRMError, match="line 1: evidence 'm2' is the id of no message"):
        run("context", "--dataset", str(path))


def test_synthetic_sessions_are_repeatable_and_of_the_papers_size():
    for kind in SESSION_KINDS:
        session = generate(kind)
        assert session == generate(kind) and len(session.messages) == kind.messages
        assert len(session.keys) == kind.keys
        size = sum(len(m.text) for m in session.messages) / 4
        assert size == pytest.approx(kind.tokens, rel=0.04)


def test_carried_values_are_ids_numbers_and_names():
    call = A(
        "",
        "a",
        "c",
        arguments=json.dumps({"id": "ZFA04Y", "n": 1200, "small": 3, "cmd": "cat src/a.py b.c_d word"}),
    )
    assert carried_values(call) == ["ZFA04Y", "1200", "src/a.py", "b.c_d"] or set(carried_values(call)) >= {
        "ZFA04Y",
        "1200",
        "src/a.py",
    }


def test_a_long_evaluation_says_where_it_is(talk, capsys):
    parser = argparse.ArgumentParser()
    evaluate.add_parser(parser.add_subparsers(dest="command"))
    line = ["evaluate", "context", "--dataset", str(talk), "--method", "keep-last,idf"]
    assert evaluate.run(parser.parse_args(line)) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == ["c: keep-last"]  # no terminal: at most a line in some seconds


def test_a_limit_that_no_run_reaches_is_told(tmp_path, capsys):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "say hello"}]
    messages.append({"role": "assistant", "content": "hello"})
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"id": "t", "messages": messages}) + "\n")
    assert run("trajectories", "--dataset", str(path), "--method", "keep-last") == 0
    assert "nothing was compacted" in capsys.readouterr().out
