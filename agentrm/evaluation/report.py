"""How are results shown to a person?"""

from __future__ import annotations

from collections.abc import Sequence

from agentrm.evaluation import conversations, synthetic_run, trajectories
from agentrm.evaluation.datasets import Conversation


def context_table(rows: Sequence[conversations.Row], data: Sequence[Conversation]) -> str:
    """One line per method and category, budgets side by side, without and with the question known."""
    budgets = sorted({r.budget for r in rows})
    messages = sum(len(c.messages) for c in data)
    questions = sum(len(c.questions) for c in data)
    out = [
        f"{len(data)} conversations, {messages} messages, {questions} questions.",
        "Evidence kept / all evidence / answer words, % at a share of the tokens.",
    ]
    for known, title in ((False, "without knowing the question"), (True, "with the question known")):
        some = [r for r in rows if r.query_known == known]
        if not some:
            continue
        out += [
            "",
            title,
            f"{'method':18}{'category':13}" + "".join(f"{f'{100 * b:g} %':>20}" for b in budgets),
        ]
        seen = dict.fromkeys((r.method, r.category) for r in some)
        for method, category in sorted(seen, key=lambda k: (k[1] != "all", k[1])):
            cells = {r.budget: r for r in some if (r.method, r.category) == (method, category)}
            line = f"{method:18}{category:13}"
            for budget in budgets:
                r = cells.get(budget)
                text = (
                    f"{100 * r.evidence:.1f}/{100 * r.all_evidence:.1f}/{100 * r.answer_words:.1f}"
                    if r
                    else "-"
                )
                line += f"{text:>20}"
            out.append(line)
    out += _closed(rows, budgets)
    return "\n".join(out)


def _closed(rows: Sequence[conversations.Row], budgets: Sequence[float]) -> list[str]:
    """How much of the way from keep-last to belady each of our methods goes."""
    table = {(r.method, r.budget): r.evidence for r in rows if not r.query_known and r.category == "all"}
    out: list[str] = []
    for method in ("agentrm", "agentrm-no-faiss", "idf"):
        cells = []
        for budget in budgets:
            low, high = table.get(("keep-last", budget)), table.get(("belady", budget))
            mine = table.get((method, budget))
            if low is None or high is None or mine is None or high <= low:
                continue
            cells.append(f"{100 * budget:g} %: {100 * (mine - low) / (high - low):.0f} %")
        if cells:
            out.append(f"{method}: way from keep-last to belady closed: {', '.join(cells)}")
    return ["", *out] if out else []


def trajectory_table(rows: Sequence[trajectories.Row]) -> str:
    head = (
        f"{'method':18}{'invalid %':>10}{'carried %':>10}{'prefill again':>14}"
        f"{'input':>12}{'compactions':>12}{'s each':>8}"
    )
    out = []
    if rows:
        out.append(
            f"{rows[0].trajectories} trajectories, limit {rows[0].limit:g}; tokens are means per trajectory"
        )
    out.append(head)
    for r in rows:
        out.append(
            f"{r.method:18}{100 * r.invalid:10.2f}{100 * r.carried:10.2f}{r.prefill_again_tokens:14,.0f}"
            f"{r.input_tokens:12,.0f}{r.compactions:12.2f}{r.seconds:8.3f}"
        )
    if rows and not any(r.compactions for r in rows):
        out.append(
            f"No run is longer than {rows[0].limit:g} tokens, so nothing was compacted; --limit 0.5 takes half of each"
        )
    return "\n".join(out)


def synthetic_table(rows: Sequence[synthetic_run.Row]) -> str:
    out = [
        "util % / retention % (of foreign kinds %) / quality / model tokens; in brackets the paper's row",
        f"{'session':13}{'method':18}{'measured':>36}   paper",
    ]
    for r in rows:
        measured = (
            f"{100 * r.utilisation:.1f} / {100 * r.retention:.1f} ({100 * r.retention_foreign:.1f}) /"
            f" {r.quality:.2f} / {r.cost_tokens}"
        )
        paper = "[{} / {} / {} / {}]".format(*r.paper) if r.paper else ""
        out.append(f"{r.session:13}{r.method:18}{measured:>36}   {paper}")
    return "\n".join(out)
