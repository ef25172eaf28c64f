"""Prints the targets of every result file as one table; fails only on a malformed file."""

from __future__ import annotations

import sys
from pathlib import Path

from recguide.bench.targets import read_results, targets_table

RESULTS = Path(__file__).parent / "results"


def main(folder: Path) -> int:
    results, faults = read_results(folder)
    print(targets_table(results))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS))
