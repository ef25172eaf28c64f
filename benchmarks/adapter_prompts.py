"""The prompt mixture of the demo model's adapter: a balanced choice of prompts and rewritten ones.

    python benchmarks/adapter_prompts.py PROMPTS.jsonl.zst MIXTURE.jsonl.zst

Reads JSON Lines with prompt, source and licence, and writes the same with a task: math, code, chat or format.
Two kinds of prompts are made from others: function stubs with a docstring (how code is often asked for), and
requests with rules for the answer's form. No evaluation prompt is read or imitated.
"""

from __future__ import annotations

import ast
import io
import json
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import zstandard

Row = dict[str, str]

TASKS = {
    "gsm8k_train": ("math", 8000),
    "synth_math_cot": ("math", 5000),
    "math_4500": ("math", 4500),
    "openstax_exercises": ("math", 3200),
    "docstring_code": ("code", 11000),
    "mbpp_train": ("code", 1000),
    "thirtyseconds_cc0": ("code", 600),
    "code-templates": ("code", 800),
    "exercism_python": ("code", 100),
    "topic-templates": ("chat", 14000),
    "wikipedia_vital4": ("chat", 4000),
    "opentriviaqa": ("chat", 2500),
    "openstax_glossary": ("chat", 2500),
    "alpaca_libre": ("chat", 5100),
    "llms_from_scratch": ("chat", 1100),
    "story-templates": ("chat", 1200),
    "howto-templates": ("chat", 400),
    "synth_format": ("format", 2000),
}
STUBS = 7000
RULED = 14000
SEED = 20


def main(source: Path, target: Path) -> None:
    rng = random.Random(SEED)
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in read(source):
        by_source[row["source"].rpartition("/")[2]].append(row)
    chosen: list[Row] = []
    for name, (task, most) in TASKS.items():
        rows = by_source[name]
        rng.shuffle(rows)
        chosen += [{**row, "task": task} for row in rows[:most]]
    chosen += stubs(by_source["docstring_code"] + by_source["mbpp_train"], rng)
    chosen += ruled(by_source, rng)
    rng.shuffle(chosen)
    unique = list({row["prompt"]: row for row in chosen}.values())
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in unique).encode()
    target.write_bytes(zstandard.ZstdCompressor(level=19).compress(data))
    print(len(unique), dict(Counter(row["task"] for row in unique)))


def read(file: Path) -> list[Row]:
    with file.open("rb") as raw:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8")
        return [json.loads(line) for line in lines]


# --- function stubs -----------------------------------------------------------------------------------------

ARGUMENTS = (
    "n: int",
    "x: int",
    "x: float",
    "a: int, b: int",
    "x: int, y: int",
    "text: str",
    "s: str",
    "string: str",
    "items: list",
    "numbers: List[int]",
    "values: List[float]",
    "words: List[str]",
    "lst: List[int]",
    "data: dict",
    "numbers: List[int], k: int",
    "text: str, n: int",
    "lst",
    "arr",
    "s",
    "n",
    "x, y",
    "a, b",
    "text",
    "data",
    "self, value",
    "matrix",
    "path",
    "name",
)
RESULTS = ("", "", "", " -> int", " -> bool", " -> str", " -> List[int]", " -> float", " -> List[str]")


def stubs(rows: list[Row], rng: random.Random) -> list[Row]:
    """Requests for a described function, as the function's own first lines."""
    found: list[Row] = []
    for row in rng.sample(rows, len(rows)):
        text = tested_stub(row["prompt"]) or described_stub(row["prompt"], rng)
        if text is not None:
            found.append({**row, "prompt": text, "task": "code"})
    return found[:STUBS]


def described_stub(prompt: str, rng: random.Random) -> str | None:
    match = re.match(r"Write a Python function `(\w+)` that does the following: (.+)", prompt, re.DOTALL)
    if match is None:
        named = re.match(r"Implement this in Python: (.+)\nName the function `(\w+)`", prompt, re.DOTALL)
        if named is None:
            return None
        words, name = named.groups()
    else:
        name, words = match.groups()
    arguments, result = rng.choice(ARGUMENTS), rng.choice(RESULTS)
    needed = "List[" in arguments + result
    head = "from typing import List\n\n\n" if needed else rng.choice(("", "\n\n"))
    quote = rng.choice(('"""', '""" ', '"""\n    '))
    body = words.strip().replace("\n", "\n    ") + examples(name, arguments, result, rng)
    return f'{head}def {name}({arguments}){result}:\n    {quote}{body}\n    """\n'


def examples(name: str, arguments: str, result: str, rng: random.Random) -> str:
    """Usage lines for a docstring, with made-up values of the right kinds; none for half of the functions."""
    if rng.random() < 0.5:
        return ""
    lines: list[str] = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        values = ", ".join(
            literal(argument, rng) for argument in re.split(r", (?=\w)", arguments) if argument != "self"
        )
        lines.append(f"\n    >>> {name}({values})\n    {literal(result or rng.choice(RESULTS), rng)}")
    return "".join(lines)


def literal(kind: str, rng: random.Random) -> str:
    """A value for an annotated argument or result."""
    number = rng.randint(0, 99)
    if "List[str]" in kind or "words" in kind:
        return repr(rng.sample(WORDS, rng.randint(0, 4)))
    if "List[float]" in kind:
        return repr([rng.randint(0, 99) / 10 for _ in range(rng.randint(1, 5))])
    if "ist" in kind or kind in ("lst", "arr"):
        return repr([rng.randint(-9, 99) for _ in range(rng.randint(0, 6))])
    if "str" in kind or kind in ("s", "text", "path", "name"):
        return repr(rng.choice(WORDS))
    if "bool" in kind:
        return rng.choice(("True", "False"))
    return repr(number / 10) if "float" in kind else repr(number)


def tested_stub(prompt: str) -> str | None:
    """A described function with assertions → a stub whose docstring holds them as examples."""
    match = re.match(
        r"Write a (?:[Pp]ython )?function to (.+?)\.?\s*\nYour code should satisfy these tests:\n(.+)",
        prompt,
        re.DOTALL,
    )
    if match is None:
        return None
    words, tests = match.groups()
    examples: list[str] = []
    name, count = "", 0
    for line in tests.splitlines():
        try:
            tree = ast.parse(line.strip())
        except SyntaxError:
            continue
        test = tree.body[0].test if tree.body and isinstance(tree.body[0], ast.Assert) else None
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Call)
            and isinstance(test.left.func, ast.Name)
        ):
            name, count = test.left.func.id, len(test.left.args)
            examples.append(f"    >>> {ast.unparse(test.left)}\n    {ast.unparse(test.comparators[0])}\n")
    if not examples:
        return None
    arguments = ", ".join("abcdefgh"[:count])
    sentence = words[0].upper() + words[1:]
    return f'def {name}({arguments}):\n    """{sentence}.\n{"".join(examples[:2])}    """\n'


# --- requests with rules for the answer's form --------------------------------------------------------------

FORMS = (
    "a short story",
    "a poem",
    "a limerick",
    "a song",
    "a blog post",
    "an essay",
    "a letter to a friend",
    "an email to a colleague",
    "a product description",
    "an advertisement",
    "a speech",
    "a dialogue",
    "a summary",
    "a list of facts",
    "a set of instructions",
    "a riddle",
    "a news article",
    "a review",
    "a proposal",
    "a resume for somebody who works",
    "a cover letter for a job",
    "a travel plan",
    "a quiz",
    "a script for a video",
    "an explanation for children",
)
STARTS = (
    "Write {form} about {topic}.",
    "Please write {form} about {topic}.",
    "Can you write {form} about {topic}?",
    "I need {form} about {topic}.",
    "Could you help me with {form} about {topic}?",
    "Compose {form} on the subject of {topic}.",
    "Create {form} on {topic}.",
    "What should I know about {topic}?",
    "Explain {topic} to me.",
    "Give me {form} about {topic}, please.",
)
RULES = (
    "Do not use any commas.",
    "Use no commas in your answer.",
    "Use at least {many} words.",
    "Write {many} words or more.",
    "Use fewer than {many} words.",
    "Keep it under {few} sentences.",
    "Write at least {few} sentences.",
    "Answer in lowercase letters only, without any capital letters.",
    "Write everything in capital letters.",
    "Highlight at least {few} parts of your answer in markdown, like *this part*.",
    "Give it a title in double angular brackets, such as <<my title>>.",
    "Use exactly {few} bullet points in markdown, such as:\n* First point.\n* Second point.",
    "Put your whole answer in double quotation marks.",
    "Write {few} paragraphs, separated by ***.",
    "Write {few} paragraphs with two new lines between them.",
    "Add a postscript at the end, beginning with P.S.",
    "Finish with the exact words: Is there anything else?",
    "Mention the words {word} and {other}.",
    "Do not use the word {word}.",
    "The word {word} should occur at least {few} times.",
    "The letter {letter} should occur at least {few} times.",
    "Answer in JSON, in a markdown code block.",
    "Give two different answers, separated by six asterisks: ******",
    "Use at least {few} placeholders in square brackets, such as [name].",
    "Mark each of the {few} sections as Section 1, Section 2 and so on.",
    "First repeat my request word for word, then answer it.",
    "Write for young readers.",
    "Make it funny.",
    "Use a formal tone.",
    "Answer as if you were a pirate.",
)
WORDS = [
    "river",
    "winter",
    "engine",
    "garden",
    "music",
    "doctor",
    "bridge",
    "paper",
    "market",
    "island",
    "shadow",
    "window",
    "teacher",
    "signal",
    "copper",
    "journey",
    "kitchen",
    "planet",
    "thunder",
    "velvet",
    "orange",
    "silver",
    "story",
    "number",
    "forest",
    "simple",
]


def ruled(by_source: dict[str, list[Row]], rng: random.Random) -> list[Row]:
    topics = sorted(
        {
            topic
            for row in by_source["topic-templates"]
            for topic in re.findall(r" about (.+?)(?: and give[^.?]*)?[.?]", row["prompt"])
        }
    )
    others = [
        row for name in ("story-templates", "howto-templates", "alpaca_libre") for row in by_source[name]
    ]
    found: list[Row] = []
    while len(found) < RULED:
        if rng.random() < 0.15:
            base = rng.choice(others)
            start, licence = base["prompt"], base["licence"]
        else:
            start = rng.choice(STARTS).format(form=rng.choice(FORMS), topic=rng.choice(topics))
            licence = "CC0"
        rules = [rule(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        text = " ".join((start, *rules)) if rng.random() < 0.85 else " ".join((*rules, start))
        found.append(
            {"prompt": text, "source": "rules for topic-templates", "licence": licence, "task": "format"}
        )
    return found


def rule(rng: random.Random) -> str:
    word, other = rng.sample(WORDS, 2)
    return rng.choice(RULES).format(
        many=rng.choice((50, 100, 150, 200, 250, 300, 400)),
        few=rng.choice((2, 3, 4, 5, 6, 8)),
        word=word,
        other=other,
        letter=rng.choice("abcdefghilmnoprstuw"),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
