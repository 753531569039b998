"""Dev set and test set: detectors are tuned on the dev set and measured on the test set.

The hash of a task decides its set, so a task and all hints on it are in the same set in every run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

FIRST_OF_DEV = "8"
"""Tasks whose hash begins with this hexadecimal digit or a later one are in the dev set."""


def task_hash(environment: str, public: Mapping[str, object], privileged: Mapping[str, object]) -> str:
    """Return 16 hexadecimal digits that are equal for tasks with equal environment, public and privileged data.

    Privileged data is included because many tasks share one prompt and differ only in the answer.
    """
    data = [environment, public, privileged]
    text = json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_test(task_hash: str) -> bool:
    """Whether the task with this hash is in the test set."""
    return task_hash[:1] < FIRST_OF_DEV
