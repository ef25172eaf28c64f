"""Prompts that come with the package: short, of different kinds, and one that has caught bugs elsewhere."""

REPEATED = " ".join(["river"] * 48)
"""One word, 48 times: repetitive text brings near ties and long acceptances."""

EXACTNESS = (
    "Name three things that a lighthouse keeper does before sunset, and say why each matters.",
    "A baker sells 24 rolls in the morning and half as many in the afternoon. Each roll costs 3 coins. "
    "How many coins does the baker take in?",
    "Write a Python function that returns the longest run of equal characters in a string.",
    "Translate into French: The train leaves at seven, so we should have breakfast early.",
    "Count from one to thirty in words, separated by commas.",
    "List the planets as a table with the columns name, moons and colour.",
    "Tell a story of exactly five sentences about a fox who collects umbrellas. 🦊",
    REPEATED,
)

ACCEPTANCE = (
    "Explain in simple words why the sky is blue.",
    "A shelf has 5 rows of 12 books. 17 books are lent out. How many are left? Think step by step.",
    "Write a Python function that checks whether a number is prime.",
    "Give me a recipe for vegetable soup with a list of ingredients and numbered steps.",
    "Summarise the benefits of walking every day in four bullet points.",
)
