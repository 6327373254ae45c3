"""Which strings must never be paraphrased, and which sentences carry a decision, a rule or an error?

Two layers. *Opaque strings* (ids, hashes, paths, URLs, addresses, numbers with units, dates) are found by
one scan of the text; a model that rewrites one of them by a character makes it useless. *Sentence kinds*
(instruction, decision, commitment, correction, question, error, preference) are found by their words.
"""

from __future__ import annotations

import re

# One alternative per kind; longer and more specific forms first, since the first that matches wins. Applied
# to one blank-free chunk of text at a time.
OPAQUE = re.compile(
    r"(?P<url>\b(?:https?|ftp|wss?|s3|gs|postgres(?:ql)?|mysql|redis|file|git|ssh)://[^\s<>\"'`)\]}]+)"
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    r"|(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b)"
    r"|(?P<address>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5}|/\d{1,2})?\b|\blocalhost:\d{2,5}\b)"
    r"|(?P<winpath>\b[A-Za-z]:\\(?:[^\s\\/:*?\"<>|]+\\)*[^\s\\/:*?\"<>|,;]+)"
    r"|(?P<path>(?<![\w/.<-])~?\.{0,2}/(?:[\w.@%+=~-]+/)*[\w.@%+=~-]*\w/?"
    r"|\b[\w.@-]+(?:/[\w.@+-]+)+\.\w{1,6}\b"
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:py|js|ts|tsx|go|rs|c|h|cpp|java|rb|sh|sql|md|rst|txt|json|ya?ml|toml|cfg|ini"
    r"|csv|log|html|css|lock|xml|ipynb|proto|gz|zip|pdf|png|jpg|svg)\b)"
    r"|(?P<hash>\b(?:sha(?:1|256|512):)?(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,128}\b)"
    r"|(?P<date>\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?\b"
    r"|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\b\d{1,2}:\d{2}(?::\d{2})?\b)"
    r"|(?P<money>[$€£¥]\d[\d,]*(?:\.\d+)?[kKmMbB]?\b)"
    r"|(?P<ticket>\b[A-Z][A-Z0-9]{1,9}-\d+\b|(?<!\w)#\d{2,}\b)"
    r"|(?P<identifier>\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*\b"
    r"|\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(\))?|\b[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+\b|\b_+[A-Za-z]\w+\b"
    r"|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b|(?<!\S)--?[a-z][\w-]+\b|\b[A-Z][A-Z_]{3,}\b)"
    r"|(?P<version>\bv?\d+\.\d+(?:\.\d+)*(?:[-+][\w.]+)?\b)"
    r"|(?P<bignumber>\b\d{3,}\b)"
)

# What still belongs to an id before and behind the part that its pattern found.
HEAD = re.compile(r"(?:[A-Za-z0-9]+[-_/.+#])+$")
REST = re.compile(r"(?:[-_/.+#][A-Za-z0-9]+)+")

# Forms of several words. Each begins with a digit or the name of a month: the scan skips to those.
SPACED = (
    re.compile(
        r"(?P<number>\d(?<![\w.,]\d)[\d,]*(?:\.\d+)? ?(?:%|°[CF]|(?:ms|s|sec|seconds?|minutes?|min|hours?"
        r"|h|days?"
        r"|weeks?|months?|years?|[KMGT]i?B|bytes?|kb|mb|gb|tokens?|rps|qps|k?Hz|[MG]Hz|km|kg|cm|mm|m|retries"
        r"|replicas|rows|users|requests?|items|times|cores|threads|px|V|W|A|mph|kWh|people|dollars|euros"
        r"|USD|EUR|GBP|CHF|[AaPp][Mm])\b))"
    ),
    re.compile(
        r"(?P<date>\d(?<!\w\d)\d{3}-\d{2}-\d{2} \d{2}:\d{2}(?::\d{2})?\b)"
    ),
)
MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
MONTH_DATE = re.compile(
    rf"(?P<date>\b(?:\d{{1,2}} )?(?:{'|'.join(MONTHS)})(?: \d{{1,2}}(?:, \d{{4}})?| \d{{4}})\b)"
)

# `name: value`, `name = value`, `name is value`; the value is what has to survive, the name says what it is. The
# separator is looked for first, then the name before it (a search that ends there), then the value behind it.
SEPARATOR = re.compile(
    r"[:=]\s*|\s(?:is|are|was|=|to be|equals|stays at|set to|changed to|now|is now)\s+"
)
NAME = re.compile(
    r"(?:^|(?<=[\s{(,;\"'`]))[\"'`]?(?P<name>[A-Za-z][\w.-]{1,40}(?: [\w-]{1,20}){0,2})[\"'`]?\s*$"
)
LONGEST_NAME = 90
VALUE = re.compile(r"[\"'`]?(?P<value>[^\s\"'`,;(){}\[\]][^\"'`,;(){}\[\]\n]{0,60})")

SENTENCE = re.compile(r"[^\s].*?(?:[.!?…](?=[\s\"')\]]|$)|\n|$)", re.DOTALL)

KINDS: dict[str, re.Pattern[str]] = {
    "correction": re.compile(
        r"\b(?:not\s+[^.,;]{1,40},?\s+but\b|actually|correction|i meant|rather than|instead(?: of)?"
        r"|scratch that|ignore (?:that|the)|no longer|wrong|should (?:have been|be)\s+\S+,? not\b"
        r"|changed? (?:my|our) mind|supersedes?|replaces?)\b",
        re.IGNORECASE,
    ),
    "instruction": re.compile(
        r"\b(?:always|never|must(?: not)?|do not|don't|make sure|from now on|only use"
        r"|remember (?:to|that)|please (?:use|avoid|keep|note)|under no circumstances|required?|forbidden"
        r"|prefer(?:s|red)?|policy|rule|important|keep in mind|no matter what)\b",
        re.IGNORECASE,
    ),
    "decision": re.compile(
        r"\b(?:we(?:'ve| have)? (?:decided|agreed|chose|picked|settled)|let's (?:go|use|stick|do|ship)"
        r"|decision|decided|agreed|approved?|going with|chose|signed off|conclu(?:de|sion)"
        r"|final(?:ly|ised|ized)?|confirmed)\b",
        re.IGNORECASE,
    ),
    "commitment": re.compile(
        r"\b(?:i(?:'ll| will)|we(?:'ll| will)|promise|commit(?:ted)? to|deadline|due"
        r"|by (?:monday|tuesday|wednesday|thursday|friday|saturday|sunday|tomorrow|tonight|end of|next)"
        r"|scheduled?|will (?:send|deliver|ship|call|finish))\b",
        re.IGNORECASE,
    ),
    "error": re.compile(
        r"(?:\b\w*(?:Error|Exception)\b|\btraceback\b|\bfail(?:ed|ure|s)?\b|\bfatal\b|\bpanic\b"
        r"|\bexit (?:code|status) [1-9]|\breturncode>\s*[1-9]|\bpermission denied\b|\bnot found\b|\btimed? ?out\b"
        r"|\bsegfault\b|\bassert\w*\b)",
        re.IGNORECASE,
    ),
    "preference": re.compile(
        r"\b(?:favou?rite|i (?:like|love|hate|prefer|am allergic|can't stand)|allergic|birthday"
        r"|my (?:name|wife|husband|son|daughter|mother"
        r"|father|sister|brother|dog|cat|boss|doctor|password|address|phone))\b",
        re.IGNORECASE,
    ),
}

# What a text of each kind contains somewhere, in lower case: a text without any of it need not be searched.
SIGNS: dict[str, tuple[str, ...]] = {
    "correction": ("not", "actually", "correction", "i meant", "rather", "instead", "scratch", "ignore", "no longer",
                   "wrong", "should", "mind", "supersede", "replace"),
    "instruction": ("always", "never", "must", "don't", "do not", "make sure", "from now on", "only use", "remember",
                    "please", "under no", "require", "forbidden", "prefer", "policy", "rule", "important", "keep in",
                    "no matter"),
    "decision": ("decid", "agreed", "chose", "picked", "settled", "let's", "decision", "approve", "going with",
                 "signed off", "conclu", "final", "confirmed"),
    "commitment": ("i'll", "i will", "we'll", "we will", "promise", "commit", "deadline", "due", "by ", "schedule",
                   "will "),
    "error": ("error", "exception", "traceback", "fail", "fatal", "panic", "exit ", "returncode", "denied",
              "not found", "time", "segfault", "assert"),
    "preference": ("favo", "i like", "i love", "i hate", "i prefer", "i am allergic", "i can't stand", "allergic",
                   "birthday", "my "),
}  # fmt: skip
