"""Addresses of the pages."""

from __future__ import annotations

import re
from urllib.parse import urlencode


def page_url(path: str, **query: str | int | None) -> str:
    """Return e.g. `/run?run=17`; None and empty values are omitted."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")}, safe=",@:/")
    return f"/{path}?{text}" if text else f"/{path}"


def audit_url(arguments: str, detail: str) -> str | None:
    """Return the page of the run, dialogue, turn or chat of an entry of the audit log; None if it names none."""
    text = f"{arguments}, {detail}"

    def find(pattern: str) -> str | None:
        match = re.search(rf"(?:^|, ){pattern}", text)
        return match[1] if match else None

    run = find(r"run (\d+)") or find(r"(?:runs?|run_ids?)=\[?(\d+)")
    event = find(r"event_id=(.+?)(?:$|, \w+=|, $)")
    if run and event:
        return page_url("dialogues", run=run, dialogue=event, turn=find(r"turn=(\d+)"))
    chat = find(r"chat=(\d+)")
    return page_url("run", run=run) if run else page_url("chat", chat=chat) if chat else None
