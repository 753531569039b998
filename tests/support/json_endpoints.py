"""Endpoints with the results that programs receive."""

from __future__ import annotations

import inspect
from typing import Any


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
        if not hasattr(value, "operation"):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result, to_json = value(*args, **kwargs), value.operation.to_json
            return map(to_json, result) if inspect.isgenerator(result) else to_json(result)

        return call
