"""Every verifying method against plain decoding on the demo model in float32, as in `recguide verify`."""

from __future__ import annotations

from pathlib import Path

from recguide import LLM
from recguide.bench.prompts import EXACTNESS
from recguide.bench.results import Target, write_result
from recguide.bench.verify import Settings, verify

MODEL = "smollm2-135m"
SETTINGS = Settings(block_sizes=(8, 32), temperatures=(0.0, 0.8), max_tokens=24)


def main() -> None:
    llm = LLM(MODEL, device="cpu")
    ids = [llm.tokenizer.chat([{"role": "user", "content": prompt}]) for prompt in EXACTNESS]
    report = verify(llm, ids, SETTINGS).as_object()
    print({name: report[name] for name in ("texts", "identical", "ties", "bugs")})
    write_result(
        Path(__file__).parent / "results" / "exactness.json",
        settings={
            "model": MODEL,
            "dtype": "float32",
            "methods": SETTINGS.methods,
            "block_sizes": SETTINGS.block_sizes,
            "temperatures": SETTINGS.temperatures,
            "max_tokens": SETTINGS.max_tokens,
        },
        rows=[report],
        targets=[
            Target.at_most("texts that differ from plain decoding's by no proven tie", report["bugs"], 0),
            Target.at_least(
                "texts that are plain decoding's, as a share", report["identical"] / report["texts"], 0.99
            ),
        ],
    )


if __name__ == "__main__":
    main()
