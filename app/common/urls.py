"""Addresses of the pages."""

from __future__ import annotations

import json
import re
from urllib.parse import urlencode

PAIR = re.compile(r'(?:^|, )(\w+)=("(?:[^"\\]|\\.)*(?:"|$)|.*?(?=, \w+=|$))')
"""Name and value of an argument in the audit log; a value that contains a separator is a JSON text."""


def page_url(path: str, **query: str | int | None) -> str:
    """Return e.g. `/run?run=17`; None and empty values are omitted."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")}, safe=",@:/")
    return f"/{path}?{text}" if text else f"/{path}"


def audit_url(arguments: str, detail: str) -> str | None:
    """Return the page of the run, dialogue, turn or chat of an entry of the audit log; None if it names none."""
    details = detail if re.match(r"run[ =]\d", detail) else ""  # others are sentences
    pairs = dict(reversed([*PAIR.findall(details), *PAIR.findall(arguments)]))  # the first one counts

    def number(pattern: str, text: str) -> str | None:
        match = re.match(pattern, text)
        return match[1] if match else None

    named = (pairs.get(name, "") for name in ("run", "runs", "run_id", "run_ids"))
    run = number(r"run (\d+)$", detail) or next(filter(None, (number(r"\[?(\d+)", text) for text in named)), None)
    event = pairs.get("event_id", "")
    if run and event:
        event = json.loads(event) if re.fullmatch(r'"(?:[^"\\]|\\.)*"', event) else event
        return page_url("dialogues", run=run, dialogue=event, turn=number(r"(\d+)", pairs.get("turn", "")))
    chat = number(r"(\d+)", pairs.get("chat", ""))
    return page_url("run", run=run) if run else page_url("chat", chat=chat) if chat else None
