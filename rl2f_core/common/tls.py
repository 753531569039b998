"""Certificates of HTTP clients."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def tls_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return the TLS settings of HTTP clients, made once per process, because reading the certificates takes 40 ms.

    With `trust_env`, SSL_CERT_FILE and SSL_CERT_DIR replace the certificates of the system.
    """
    import httpx2

    return httpx2.create_ssl_context(trust_env=trust_env)
