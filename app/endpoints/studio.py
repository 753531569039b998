"""All endpoints of a workspace in one object, for pages, programs and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from app.endpoints.endpoint import Scope, endpoints_of
from app.endpoints.exports import ExportEndpoints

if TYPE_CHECKING:
    from app.common.context import Context


class Studio:
    """The endpoints of one workspace, grouped by subject.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.exports = ExportEndpoints(context)

    def endpoints(self) -> Iterator[tuple[str, Scope, Callable[..., Any]]]:
        """Yield name, scope and function of every endpoint; names are unique."""
        for group in (self.exports,):
            yield from endpoints_of(group)
