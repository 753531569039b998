"""plotly.js is served from the installed package, so that the studio needs no other server."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.testclient import TestClient

from app.common.context import Context
from app.components.module import plotly_url
from app.web import files


def test_plotly_comes_from_the_installed_package_and_browsers_keep_it(context: Context) -> None:
    from plotly.offline import get_plotlyjs

    app = FastAPI()
    app.include_router(files.router(context))
    client = TestClient(app)
    response = client.get(plotly_url())
    assert response.text == get_plotlyjs()
    assert response.headers["content-encoding"] == "gzip" and "immutable" in response.headers["cache-control"]
    assert client.get(plotly_url(), headers={"accept-encoding": "identity"}).text == response.text
