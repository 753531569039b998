"""Requests to servers of the tests, which have no TLS: `httpx` otherwise reads all certificates for each, in 70 ms."""

from __future__ import annotations

from functools import partial

import httpx

request = partial(httpx.request, verify=False)
get = partial(httpx.get, verify=False)
post = partial(httpx.post, verify=False)
