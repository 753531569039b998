"""JSON routes for tests of the web server: they read and change the queue of the app's workspace."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, FastAPI

from app.common.context import Context
from jobs.db.queries import runs

QUEUE = "/test/queue"


def add_stub_routes(app: FastAPI, context: Context) -> None:
    """Add `GET` and `POST /test/queue` and `POST /test/runs/ID/stop` before all other routes."""
    api = APIRouter(prefix="/test")

    @api.get("/queue")
    def read_queue() -> dict[str, object]:
        return {"paused": context.queue.paused, "runs": [run.name for run in runs.page(context.db).rows]}

    @api.post("/queue")
    def switch_queue(on: Annotated[bool, Body(embed=True)]) -> dict[str, bool]:
        (context.queue.resume_dispatch if on else context.queue.pause)()
        return {"paused": context.queue.paused}

    @api.post("/runs/{run_id}/stop")
    def stop(run_id: int) -> dict[str, str]:
        return {"status": context.queue.stop(run_id).status}

    app.router.routes[:0] = api.routes  # Gradio is mounted at / and would receive requests to later routes
