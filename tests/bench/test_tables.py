from __future__ import annotations

from recguide.bench.tables import markdown_table, text_table

ROWS = [
    {"name": "a|b", "ms": 4.26123, "n": 1024, "met": True, "more": "not shown"},
    {"name": "long name", "ms": None, "n": 1, "met": False},
]
COLUMNS = {"name": "what", "ms": "ms", "n": "N", "met": "met"}


def test_text_is_aligned_and_numbers_stand_to_the_right():
    assert text_table(ROWS, COLUMNS).splitlines() == [
        "what          ms      N  met",
        "a|b        4.261  1,024  yes",
        "long name      -      1  no",
    ]


def test_markdown_escapes_bars():
    assert markdown_table(ROWS, COLUMNS).splitlines() == [
        "| what | ms | N | met |",
        "| --- | ---: | ---: | --- |",
        "| a\\|b | 4.261 | 1,024 | yes |",
        "| long name | - | 1 | no |",
    ]
