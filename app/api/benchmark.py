"""The synthetic leak benchmark's board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from app import leak_benchmark

if TYPE_CHECKING:
    from app.context import Context


def router(context: Context) -> APIRouter:
    """The route `/api/labels/benchmark`."""
    api = APIRouter(prefix="/api/labels/benchmark")

    @api.get("")
    def read() -> dict[str, Any]:
        """The default detectors on the shipped items, by kind and environment."""
        return leak_benchmark.figures()

    return api
