"""JavaScript modules of components, loaded by `js_on_load`."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent
URL = "/components"
"""Address below which the server serves the modules."""


def plotly_url() -> str:
    """Return the address of plotly.js, which changes with its version."""
    return f"{URL}/plotly.min.js?v={version('plotly')}"


@lru_cache
def module_url(name: str) -> str:
    """Return the address of a module, such as `browser/keys.js`, with a version that changes with its content."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:10]
    return f"{URL}/{name}?v={digest}"


def load_module(name: str) -> str:
    """Return the `js_on_load` of a component: it calls the default export of a module.

    `values` are what Python sets (`component.js`); `props.value` also has answers that arrived late.

    The address has an origin: Chromium may reuse the compiled function of another server's page. The `signal` is
    aborted when the page is left; the document stays, so listeners of the document and timers must end with it.
    """
    return (
        "const { signal } = (window.rlPage ??= new AbortController());"
        f"const urls = ['{module_url(name)}', '{module_url('component.js')}'];"
        "Promise.all(urls.map((url) => import(location.origin + url))).then(([module, { default: values }]) =>"
        " signal.aborted || module.default({ element, props, trigger, watch, signal, values: values(props, watch),"
        " server: typeof server === 'undefined' ? null : server }));"
    )
