"""Print the versions that the project runs with here: its dependencies and theirs, for the extras named.

Usage: python .ci/lock.py app dev > requirements.lock
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from packaging.requirements import Requirement


def closure(extras: set[str]) -> dict[str, str]:
    """Installed versions of `rl2f`'s dependencies, directly or not, by normalised name."""
    found: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    waiting = [("rl2f", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if (key, extra) in done:
            continue
        done.add((key, extra))
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # wanted only on another kind of machine
        if key != "rl2f":
            found[key] = version.partition("+")[0]
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, inner) for inner in ("", *requirement.extras)]
    return found


if __name__ == "__main__":
    print("# Made by `make lock`; used as constraints by `make setup`.")
    for name, version in sorted(closure(set(sys.argv[1:])).items()):
        print(f"{name}=={version}")
