"""What do the paper's four synthetic sessions look like, and what did the paper report for them?

Sizes, key messages and window are those of the AgentRM paper (arXiv 2603.13110, VI-C); it gives no
generator, so this one is ours. It was fixed before the compaction was tuned. A key message holds one key
sentence at a random place among filler; the filler shares its words between messages and has numbers and
names of its own, as decoys. Key sentences are of kinds that the key-information patterns look for (`KNOWN`)
and of kinds that they know nothing of (`FOREIGN`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrm.context.messages import Message, Text

WINDOW = 50_000  # tokens; the paper states it for the 50-turn session only


@dataclass(frozen=True, slots=True)
class SessionKind:
    """`paper` maps a method's name to its row: utilisation %, retention %, quality, compaction tokens."""

    name: str
    messages: int
    tokens: int
    keys: int
    topics: int
    paper: dict[str, tuple[float, float, float, int]]


SESSION_KINDS = (
    SessionKind(
        "50-turn", 100, 51_000, 13, 1,
        {
            "none": (50.4, 100.0, 0.85, 0), "fifo": (48.8, 84.6, 0.89, 0), "sliding": (32.7, 53.8, 0.85, 0),
            "memgpt": (43.6, 84.6, 0.88, 2298), "agentrm": (43.4, 100.0, 0.95, 4839),
        },
    ),
    SessionKind(
        "100-turn", 200, 105_000, 27, 1,
        {
            "none": (74.9, 51.9, 0.70, 0), "fifo": (66.6, 44.4, 0.87, 0), "sliding": (38.1, 22.2, 0.85, 0),
            "memgpt": (53.4, 71.9, 0.87, 7290), "agentrm": (54.4, 100.0, 0.95, 14395),
        },
    ),
    SessionKind(
        "200-turn", 400, 202_000, 47, 1,
        {
            "none": (87.1, 23.4, 0.63, 0), "fifo": (75.5, 19.1, 0.87, 0), "sliding": (38.4, 6.4, 0.85, 0),
            "memgpt": (57.8, 65.1, 0.87, 17212), "agentrm": (60.4, 99.0, 0.95, 34330),
        },
    ),
    SessionKind(
        "multi-topic", 240, 116_000, 35, 6,
        {
            "none": (77.5, 54.3, 0.68, 0), "fifo": (68.6, 45.7, 0.87, 0), "sliding": (35.6, 22.9, 0.85, 0),
            "memgpt": (53.9, 76.0, 0.87, 8656), "agentrm": (55.8, 99.6, 0.95, 16498),
        },
    ),
)  # fmt: skip

_NAMES = (
    "Ada Bruno Chiara Dmitri Elif Farid Greta Hiro Ines Jonas Kemal Lucia Milan Nadia Oskar Priya".split()
)
_THINGS = "kettle violin lantern ladder compass kayak typewriter telescope anvil hammock loom tripod".split()
_PLACES = "boathouse greenhouse attic courtyard lighthouse cellar chapel orchard workshop stable".split()
_ANIMALS = "heron otter lynx badger magpie salamander marten ibis stoat grouse".split()
_COLOURS = "crimson teal ochre violet amber turquoise ivory maroon".split()

_TOPIC_WORDS = {
    "billing": "invoice ledger tax refund currency payment customer contract discount tariff statement",
    "deployment": "cluster rollout container node image registry replica ingress pipeline release canary",
    "search": "index query shard ranking token analyser synonym facet cache crawl snippet",
    "mobile": "screen gesture layout theme widget bundle emulator notification permission store signing",
    "data": "table partition schema column join warehouse batch stream export lineage snapshot",
    "support": "ticket queue reply macro agent escalation survey backlog shift handover channel",
}
_TOPICS = {topic: words.split() for topic, words in _TOPIC_WORDS.items()}
_FILLER = (
    "We looked at the {a} again and the {b} behaves much like the {c} did before.",
    "It may help to compare the {a} with the {b} before touching the {c}.",
    "In general the {a} depends on the {b}, so the order of steps is the usual one.",
    "There are about {n} entries in the {a}, which is close to what we see in the {b}.",
    "That is a common pattern: first the {a}, then the {b}, and the {c} at the end.",
    "The {a} is described in the same way as the {b}, with small differences in the {c}.",
    "I went through the {a} once more and found nothing unusual in the {b}.",
    "As a rule of thumb the {a} takes longer than the {b} when the {c} is large.",
    "Could you say more about how the {a} and the {b} work together?",
    "Some teams split the {a} from the {b}; others keep both next to the {c}.",
    "The short version is that the {a} feeds the {b} and the {c} reads from it.",
    "{name} mentioned the {a} in passing, together with the {b}.",
)


def _hex(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("0123456789abcdef") for _ in range(n))


def _known(rng: random.Random) -> str:
    n, name = rng.randint(11, 989), rng.choice(_NAMES)
    return rng.choice(
        (
            f"We decided to go with plan {rng.choice(_ANIMALS)} and drop the other one.",
            f"I will send the signed papers to {name} by Thursday.",
            f"The service token is stored as tok_{_hex(rng, 12)}.",
            f"The broken file is /srv/{rng.choice(_PLACES)}/{rng.choice(_ANIMALS)}_{n}.py.",
            f"Use https://{rng.choice(_PLACES)}.example.org/v2/{_hex(rng, 6)}?mode={n} for the callback.",
            f"The last good build is {_hex(rng, 40)}.",
            f"The hard limit for one run is {n} seconds.",
            f"The audit takes place on 2025-0{rng.randint(1, 9)}-{rng.randint(10, 28)}.",
            f"From now on never write to the {rng.choice(_PLACES)} account without asking {name}.",
            f"It is not {name} but {rng.choice(_NAMES)} who approves the {rng.choice(_THINGS)} order.",
            f"The job failed with E{n}: could not open the {rng.choice(_THINGS)} device.",
        )
    )


def _foreign(rng: random.Random) -> str:
    name, other = rng.sample(_NAMES, 2)
    return rng.choice(
        (
            f"{name} grew up on a barge and cannot bear the smell of {rng.choice(_COLOURS)} paint.",
            f"Somebody left the {rng.choice(_COLOURS)} {rng.choice(_THINGS)} behind the"
            f" {rng.choice(_PLACES)} door.",
            f"Between ourselves we call the whole affair the {rng.choice(_COLOURS)} {rng.choice(_ANIMALS)}.",
            f"{name} and {other} have not spoken since the {rng.choice(_PLACES)} burned down.",
            f"An {rng.choice(_ANIMALS)} nests above the {rng.choice(_PLACES)} and returns each spring.",
            f"When {name} hums, the {rng.choice(_THINGS)} upstairs hums back.",
            f"{name}'s grandmother keeps the spare key inside a {rng.choice(_COLOURS)}"
            f" {rng.choice(_THINGS)}.",
            f"The moon over the {rng.choice(_PLACES)} reminded {name} of a {rng.choice(_COLOURS)}"
            f" {rng.choice(_THINGS)}.",
        )
    )


@dataclass(frozen=True, slots=True)
class SyntheticSession:
    """Messages in order;

    `keys` maps the id of a key message to its key sentence, `foreign` names the unfamiliar ones.
    """

    kind: SessionKind
    messages: tuple[Message, ...]
    keys: dict[str, str]
    foreign: frozenset[str]


def generate(kind: SessionKind, seed: int = 0) -> SyntheticSession:
    """The session of that kind; equal seeds give equal sessions. Half of the key sentences are foreign."""
    rng = random.Random(f"{kind.name}/{seed}")
    size = kind.tokens // kind.messages * 4  # characters
    topics = [list(_TOPICS)[i % len(_TOPICS)] for i in range(kind.topics)]
    chosen = sorted(rng.sample(range(kind.messages - 8), kind.keys))
    keys: dict[str, str] = {}
    foreign: set[str] = set()
    messages: list[Message] = []
    used: set[str] = set()
    for number in range(kind.messages):
        words = _TOPICS[topics[number * kind.topics // kind.messages]]
        message_id = f"s{number:03d}"
        sentences: list[str] = []
        length = 0
        target = size * rng.uniform(0.75, 1.25)
        while length < target:
            a, b, c = rng.sample(words, 3)
            sentence = rng.choice(_FILLER).format(
                a=a, b=b, c=c, n=rng.randint(2, 400), name=rng.choice(_NAMES)
            )
            sentences.append(sentence)
            length += len(sentence) + 1
        if number in chosen:
            is_foreign = len(keys) % 2 == 1
            sentence = (_foreign if is_foreign else _known)(rng)
            while sentence in used:
                sentence = (_foreign if is_foreign else _known)(rng)
            used.add(sentence)
            sentences.insert(rng.randrange(len(sentences) + 1), sentence)
            keys[message_id] = sentence
            if is_foreign:
                foreign.add(message_id)
        role = "user" if number % 2 == 0 else "assistant"
        messages.append(Message(message_id, role, (Text(" ".join(sentences)),)))
    return SyntheticSession(kind, tuple(messages), keys, frozenset(foreign))
