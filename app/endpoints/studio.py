"""All endpoints of a workspace in one object, for pages, programs and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from app.endpoints.audit import AuditEndpoints
from app.endpoints.chat import ChatEndpoints
from app.endpoints.compare import CompareEndpoints
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.endpoint import Scope, endpoints_of
from app.endpoints.exports import ExportEndpoints
from app.endpoints.fork import ForkEndpoints
from app.endpoints.launch import LaunchEndpoints
from app.endpoints.leaks.detectors import DetectorEndpoints
from app.endpoints.leaks.fitting import FittingEndpoints
from app.endpoints.leaks.labels import LabelEndpoints
from app.endpoints.own_data import OwnDataEndpoints
from app.endpoints.run import RunEndpoints
from app.endpoints.runs import RunListEndpoints
from app.plots.run_data import RunData

if TYPE_CHECKING:
    from app.common.context import Context


class Studio:
    """The endpoints of one workspace, grouped by subject.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        data = RunData(context)
        self.runs = RunListEndpoints(context)
        self.run = RunEndpoints(context, data)
        self.compare = CompareEndpoints(context, data)
        self.dialogues = DialogueEndpoints(context)
        self.labels = LabelEndpoints(context)
        self.detectors = DetectorEndpoints(context)
        self.fitting = FittingEndpoints(context)
        self.fork = ForkEndpoints(context)
        self.chat = ChatEndpoints(context)
        self.launch = LaunchEndpoints(context)
        self.own_data = OwnDataEndpoints(context)
        self.exports = ExportEndpoints(context)
        self.audit = AuditEndpoints(context)

    def endpoints(self) -> Iterator[tuple[str, Scope, Callable[..., object]]]:
        """Yield name, scope and function of every endpoint; names are unique."""
        for group in self.groups().values():
            yield from endpoints_of(group)

    def groups(self) -> dict[str, object]:
        """Return the groups of endpoints by subject."""
        return {name: group for name, group in vars(self).items() if name != "context"}
