"""results_context.md from what `python -m benchmarks.context` found: its tables, its bars, and what was learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrm.evaluation.synthetic import SESSION_KINDS, WINDOW
from agentrm.evaluation.synthetic_run import HIGH, LOW
from benchmarks.programs import Bar, bar_rows, table

Found = Mapping[str, Mapping[str, Any]]
Rows = list[dict[str, Any]]

OURS = ("agentrm", "agentrm-no-faiss")
BUDGETS = (0.1, 0.25, 0.5)
UNKNOWN = (0.25, 0.50, 0.75)  # evidence that has to stay, at each budget
KNOWN = (0.85, 0.93)
ABOVE_SIMPLE, ABOVE_BM25, ABOVE_BM25_MULTI_HOP = 0.06, 0.08, 0.15
CARRIED, PREFILL_AGAIN = 0.99, 33_000
COMPACT_MS, APPEND_MS, RESTORE_MS = 1000, 1, 300
NEAR = 1e-9

RECORDED = """Recorded agent runs, replayed call by call: `invalid` is the share of calls whose list a strict provider
refuses, `carried` the share of argument values seen earlier that are still there, `prefill again` the tokens that a
prefix cache has to read again per run. `belady` knows what later calls use; it is a bound for whole groups and keeps
no notes, so methods that copy facts out of what goes can carry more. Tokens are characters / 4."""
EVIDENCE = """Share of the evidence of a question that stands in the context, %, at 10 / 25 / 50 % of the tokens.
`belady` knows the questions."""
UNSEEN = """The weights that are shipped were fitted on these conversations, so the rows of `agentrm` know them.
Fitted on the others each time, the choice of passages alone, without notes and facts:"""
SYNTHETIC = """Mean utilisation / key sentences that stand word for word at the end (of them those of kinds that the
extractor does not know) / quality / model tokens spent, in % but the last two; in brackets the paper's own row of the
method (AgentRM, arXiv 2603.13110; it gives no generator, so the sessions are ours, with its sizes and numbers of
keys). Quality: 1 for a key sentence in a message, 0.95 in notes, 0 when it is gone."""
LEARNT = """What kept sentences from staying in the longer sessions: a key sentence shared its passage with a sentence
of filler, which made it dearer and less worth. Long messages are now cut by phrasing, and set phrases count for
less."""
NEEDLES = """A check that nothing was tuned on: sentences of LoCoMo's evidence, each put into a message of customer
service."""
SHARED_FATE = """Most of these messages are short and judged whole, so a sentence in them shares its fate with its
neighbours: cutting by phrasing gains nothing here."""
SPEED = """One thread. Processor time, but for the appends, which are by the clock. Compaction: 200,000 tokens to
half, embeddings kept from before."""


def report(found: Found) -> tuple[str, list[Bar]]:
    """The whole file, and its bars."""
    bars: list[Bar] = []
    lines = [
        "## Context, on recorded runs",
        "",
        "All of it was written by `python -m benchmarks.context --data DIR`.",
        "",
    ]
    for section in (_runs, _talk, _synthetic, _needles, _speed):
        lines += section(found, bars)
    lines += ["### Bars of the context", "", *table(("bar", "", "found"), bar_rows(bars))]
    return "\n".join(lines) + "\n", bars


def _command(part: Mapping[str, Any]) -> str:
    return f"`{' '.join(part['command'])}`"


def _percent(shares: Iterable[float], digits: int = 1) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares)


def _runs(found: Found, bars: list[Bar]) -> list[str]:
    lines = [RECORDED, ""]
    head = ("method", "invalid %", "carried %", "prefill again", "compactions")
    for name, limit in (("mini-swe", "limit {:,.0f} tokens"), ("tau-bench", "limit {:.0%} of what may go of each run")):
        part = found[name]
        rows: Rows = part["results"]
        shown = limit.format(rows[0]["limit"])
        runs = f"{rows[0]['trajectories']} {name} runs, {shown}, embeddings `{part['embedder']}`:"
        lines += [runs, _command(part), ""]
        lines += table(head, [[
            r["method"], f"{100 * r['invalid']:.2f}", f"{100 * r['carried']:.2f}", f"{r['prefill_again_tokens']:,.0f}",
            f"{r['compactions']:.2f}",
        ] for r in rows])  # fmt: skip
        lines.append("")
        for row in rows:
            method, where = row["method"], f"{name}, {row['method']}"
            if method not in OURS:
                continue
            bars.append(Bar(f"{where}: no invalid list", f"{row['invalid']:.2%}", row["invalid"] == 0))
            carried, again = row["carried"], row["prefill_again_tokens"]
            bars.append(Bar(f"{where}: at least {CARRIED:.0%} carried", f"{carried:.2%}", carried >= CARRIED))
            text = f"{where}: at most {PREFILL_AGAIN:,} tokens read again"
            bars.append(Bar(text, f"{again:,.0f}", again <= PREFILL_AGAIN))
    return lines


def _talk(found: Found, bars: list[Bar]) -> list[str]:
    part, unseen = found["locomo"], found["unseen"]
    share = {(r["method"], r["budget"], r["query_known"], r["category"]): r["evidence"] for r in part["results"]}
    methods = list(dict.fromkeys(r["method"] for r in part["results"]))

    def cells(method: str, known: bool, category: str = "all") -> str:
        if (method, BUDGETS[0], known, category) not in share:
            return ""
        return _percent(share[method, b, known, category] for b in BUDGETS)

    def way(method: str) -> str:
        if (method, BUDGETS[0], False, "all") not in share:
            return ""
        low, mine, high = ([share[m, b, False, "all"] for b in BUDGETS] for m in ("keep-last", method, "belady"))
        return _percent(((x - a) / (z - a) for a, x, z in zip(low, mine, high, strict=True)), 0)

    data = unseen["data"]
    size = f"{data['conversations']} LoCoMo conversations, {data['messages']:,} messages, {data['questions']} questions"
    lines = ["### Evidence that later questions need", "", f"{size}:", _command(part), "", EVIDENCE, ""]
    head = ("method", "question unknown", "known", "known, multi-hop", "way from keep-last to belady, unknown")
    rows = [[m, cells(m, False), cells(m, True), cells(m, True, "multi-hop"), way(m)] for m in methods]
    lines += [*table(head, rows), "", UNSEEN, _command(unseen), ""]
    judged = unseen["results"]
    kinds = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in judged))
    of = {k: [judged[n] for n in judged if n.rsplit(" ", 1)[0] == k] for k in kinds}
    words = {"blind": "question unknown", "asked": "question known"}
    named = {k: k.replace(k.split()[0], words[k.split()[0]] + ",", 1) for k in kinds}
    lines += [*table(("weights", "evidence kept"), [[named[k], _percent(of[k])] for k in kinds]), ""]

    simple = [m for m in methods if m not in (*OURS, "belady", "none") and (m, BUDGETS[0], False, "all") in share]
    for budget, least in zip(BUDGETS, UNKNOWN, strict=True):
        ours = share["agentrm", budget, False, "all"]
        best = max(simple, key=lambda m: share[m, budget, False, "all"])
        above = ours - share[best, budget, False, "all"]
        where = f"LoCoMo, unknown, {budget:.0%} of the tokens"
        bars.append(Bar(f"{where}: at least {least:.0%}", f"{ours:.1%}", ours >= least))
        name = f"{where}: {100 * ABOVE_SIMPLE:.0f} points above the best simple method ({best})"
        bars.append(Bar(name, f"{100 * above:+.1f}", above >= ABOVE_SIMPLE))
    for budget, least in zip(BUDGETS, KNOWN, strict=False):
        ours = share["agentrm", budget, True, "all"]
        above = ours - share["bm25", budget, True, "all"]
        where = f"LoCoMo, known, {budget:.0%} of the tokens"
        bars.append(Bar(f"{where}: at least {least:.0%}", f"{ours:.1%}", ours >= least))
        name = f"{where}: {100 * ABOVE_BM25:.0f} points above BM25"
        bars.append(Bar(name, f"{100 * above:+.1f}", above >= ABOVE_BM25))
    ours, bm25 = (share[m, BUDGETS[0], True, "multi-hop"] for m in ("agentrm", "bm25"))
    name = f"LoCoMo, known, multi-hop, {BUDGETS[0]:.0%}: {100 * ABOVE_BM25_MULTI_HOP:.0f} points above BM25"
    bars.append(Bar(name, f"{100 * (ours - bm25):+.1f}", ours - bm25 >= ABOVE_BM25_MULTI_HOP))
    for known, budgets in ((False, BUDGETS), (True, BUDGETS[:2])):
        gains = [share["agentrm", b, known, "all"] - share["agentrm-no-faiss", b, known, "all"] for b in budgets]
        name = f"LoCoMo, {'known' if known else 'unknown'}: similarity adds"
        bars.append(Bar(name, " / ".join(f"{100 * gain:+.1f}" for gain in gains), min(gains) > 0))
    return lines


def _synthetic(found: Found, bars: list[Bar]) -> list[str]:
    part = found["synthetic"]
    rows: Rows = part["results"]
    methods = list(dict.fromkeys(r["method"] for r in rows))
    of = {(r["session"], r["method"]): r for r in rows}

    def cell(row: dict[str, Any]) -> str:
        text = f"{100 * row['utilisation']:.1f} / {100 * row['retention']:.1f} ({100 * row['retention_foreign']:.1f})"
        text += f" / {row['quality']:.2f} / {row['cost_tokens']:,}"
        return text + (" [{:g} / {:g} / {:g} / {:,}]".format(*row["paper"]) if row["paper"] else "")

    lines = ["### The paper's synthetic sessions", ""]
    window = f"a window of {WINDOW:,} tokens, compaction from {HIGH:.0%} to {LOW:.0%}"
    lines += [f"{_command(part)}: {window}.", SYNTHETIC, ""]
    kinds = [kind.name for kind in SESSION_KINDS]
    lines += table(("session", "method", "measured [paper]"), [[k, m, cell(of[k, m])] for k in kinds for m in methods])
    for kind in kinds:
        for method in OURS:
            row = of[kind, method]
            used, kept, spent = 100 * row["utilisation"], row["retention"], row["cost_tokens"]
            paper = of[kind, "agentrm"]["paper"][0]
            name = f"{kind}, {method}: all kept at the paper's utilisation ({paper:g} %) or less, no model token"
            met = kept >= 1 - NEAR and used <= paper and spent == 0
            bars.append(Bar(name, f"{kept:.1%} at {used:.1f} %, {spent} tokens", met))
    return [*lines, "", LEARNT, ""]


def _needles(found: Found, bars: list[Bar]) -> list[str]:
    part = found["needles"]
    row = part["results"]
    kept = f"{row['kept']} of {row['needles']} kept ({row['kept'] / row['needles']:.0%})"
    held = f"the context holds {row['held']:.0%} of the {row['tokens']:,} tokens that went through it"
    return [NEEDLES, f"{_command(part)}: {row['method']}, {kept}; {held}. {SHARED_FATE}", ""]


def _speed(found: Found, bars: list[Bar]) -> list[str]:
    part = found["speed"]
    figures = {f["name"]: f for f in part["results"]}
    lines = ["### Speed", "", f"{_command(part)}; {part['machine']}.", SPEED, ""]
    lines += table(
        ("what", "also", "found"),
        [[f["name"], f["detail"], f"{f['value']:.{3 if f['value'] < 1 else 0}f} {f['unit']}"] for f in part["results"]],
    )
    for name, value in ((n, f["value"]) for n, f in figures.items()):
        if name.startswith("compact "):
            bars.append(Bar(f"{name}, 200,000 tokens: under 1 s", f"{value / 1000:.2f} s", value < COMPACT_MS))
    added = figures["append, fsync never"]["value"]
    bars.append(Bar("a message added without fsync: under 1 ms", f"{added:.3f} ms", added < APPEND_MS))
    restored = figures["restore, all as objects"]["value"]
    bars.append(Bar(f"10,000 messages restored: under {RESTORE_MS} ms", f"{restored:.0f} ms", restored < RESTORE_MS))
    return [*lines, ""]
