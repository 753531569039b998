"""The base class of components: Python makes the value, a JavaScript module of this folder shows it."""

from __future__ import annotations

import json
from itertools import count
from time import time
from typing import Any, ClassVar

import gradio as gr

from app.components.module import load_module

_numbers = count(int(time() * 1000))
"""Numbers of values, which increase after a restart of the server too."""


class Component(gr.HTML):
    """A `gr.HTML` that a module of this folder draws; its value is a number and JSON text in the browser.

    Args:
        value: Initial value.
        options: Properties for the module, and further arguments of `gr.HTML`.
    """

    MODULE: ClassVar[str]
    """Path of the module in this folder."""

    def __init__(self, value: object = None, **options: Any) -> None:
        script = load_module(self.MODULE)
        super().__init__(value, html_template="", js_on_load=script, apply_default_css=False, **options)

    def postprocess(self, value: Any) -> str:
        """Return a value as JSON text behind a number that increases: the browser ignores an older value."""
        return f"{next(_numbers)} {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
