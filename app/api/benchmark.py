"""The synthetic leak benchmark's board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from app.common import benchmark_scores

if TYPE_CHECKING:
    from app.common.context import Context


def router(context: Context) -> APIRouter:
    """The route `/api/labels/benchmark`."""
    api = APIRouter(prefix="/api/labels/benchmark")

    @api.get("")
    def read() -> dict[str, Any]:
        """The default detectors on the shipped items, by kind and environment."""
        return benchmark_scores.figures()

    return api
