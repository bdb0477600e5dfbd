"""Measure one contestant of the loading benchmark in a process of its own: `loading.py` starts this.

Reads a request (JSON) from standard input and writes the result to the file it names: some libraries print.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contest import Contestant, Setting, measure, missing_packages
from limits import LIMITS
from own import OWN
from peers import PEERS
from small import SMALL

__all__ = ["CONTESTANTS", "run"]

CONTESTANTS: dict[str, Contestant] = {one.name: one for one in (*LIMITS, *OWN, *PEERS, *SMALL)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Return the measurement, or why there is none."""
    contestant = CONTESTANTS[request["name"]]
    missing = missing_packages(contestant)
    if missing:
        return {"left_out": f"{', '.join(missing)} not installed"}
    result = measure(contestant, Path(request["work"]), Setting(**request["setting"]), cold=request["cold"])
    return asdict(result)


def main() -> None:
    request = json.load(sys.stdin)
    Path(request["result"]).write_text(json.dumps(run(request)))


if __name__ == "__main__":
    main()
