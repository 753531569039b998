"""plotly.js from the installed Python package, so that plots need no other server."""

from __future__ import annotations

import gzip
from functools import cache
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Response

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "/static/plotly.min.js"
YEAR = 365 * 24 * 3600


def url() -> str:
    """The address; it changes with the version, so browsers may keep what they have."""
    from importlib.metadata import version

    return f"{PATH}?v={version('plotly')}"


@cache
def script() -> bytes:
    """The script as it lies in the package."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


@cache
def packed() -> bytes:
    """The script compressed: a third of its size."""
    return gzip.compress(script(), 3)


def router(context: Context) -> APIRouter:
    """One route."""
    api = APIRouter()

    @api.get(PATH, include_in_schema=False)
    def plotly(accept_encoding: Annotated[str, Header()] = "") -> Response:
        headers = {"cache-control": f"public, max-age={YEAR}, immutable", "vary": "accept-encoding"}
        if "gzip" not in accept_encoding:
            return Response(script(), media_type="text/javascript", headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(packed(), media_type="text/javascript", headers=headers)

    return api
