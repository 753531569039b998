"""JSON routes for the widgets: each module has `router(context) -> APIRouter` with the prefix `/api/NAME`."""
