"""Endpoints with the results that programs receive."""

from __future__ import annotations

from typing import Any

from app.endpoints.endpoint import to_json


class JsonEndpoints:
    """Endpoints that return JSON data, as for programs.

    Args:
        group: A group of endpoints, or all endpoints of a studio.
    """

    def __init__(self, group: Any) -> None:
        self.group = group

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.group, name)
        if type(value).__module__.startswith("app.endpoints"):
            return JsonEndpoints(value)
        if not hasattr(value, "endpoint_scope"):
            return value
        return lambda *args, **kwargs: to_json(value, value(*args, **kwargs))
