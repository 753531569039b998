"""Events and calls that Gradio or a page cannot process become status 400 without a traceback in the log."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse

from app.common.http_status import STATUS

if TYPE_CHECKING:
    import gradio as gr

INVALID = (TypeError, ValueError, LookupError, AttributeError, AssertionError, RecursionError)
"""Errors of code that receives other values than a page sends."""
TEXT = "The request has values that this event cannot use. Reload the page, then try again."
_log = logging.getLogger(__name__)


def refuse_invalid_events(blocks: gr.Blocks, app: gr.routes.App) -> None:
    """Refuse invalid events of a Gradio app; the log has the place of each error, in one line."""
    import gradio as gr
    from gradio.route_utils import FnIndexInferError

    process = blocks.process_api

    async def process_event(*args: Any, request: Any = None, **options: Any) -> Any:
        try:
            return await process(*args, **{**options, "request": request})
        except gr.Error as error:
            if not error.print_exception:  # a message of the studio, which has set the status
                raise
            error.print_exception, reason = False, error
        except INVALID as error:
            reason = gr.Error(TEXT, print_exception=False)
            _log_place(error)
        if request is not None and request.request is not None:
            request.request.scope["state"].setdefault(STATUS, 400)
        raise reason

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        _log_place(error)
        return JSONResponse({"error": TEXT, "detail": TEXT}, 400)

    blocks.process_api = process_event  # type: ignore[method-assign]
    for kind in (*INVALID, FnIndexInferError):
        app.add_exception_handler(kind, refuse)


def _log_place(error: Exception) -> None:
    place = traceback.extract_tb(error.__traceback__)[-1]
    _log.warning("An event was refused: %s in %s line %s.", type(error).__name__, place.filename, place.lineno)
    _log.debug("An event was refused.", exc_info=error)
