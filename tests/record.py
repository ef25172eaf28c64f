"""Writes down what a full test run found: `python tests/record.py JUNIT_XML OUTPUT_JSON`."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pytest", "hypothesis")


def counts(report: str) -> dict[str, float]:
    """Tests by outcome, and seconds, of a JUnit report."""
    suites = list(ElementTree.fromstring(report).iter("testsuite"))

    def summed(name: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites)

    failed, skipped = summed("failures") + summed("errors"), summed("skipped")
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    return {
        "passed": summed("tests") - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(seconds, 1),
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def main(report: Path, output: Path) -> None:
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in PACKAGES},
        **counts(report.read_text()),
    }
    output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
