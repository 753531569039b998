"""Access over HTTP: loopback names, and delays after wrong passwords, tokens and keys of one and of all addresses."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict

FREE_FAILURES, FREE_FAILURES_OF_ALL = 10, 50
"""Failures without a delay, of one address and of all."""
MAX_DELAY_SECONDS, MAX_DELAY_SECONDS_OF_ALL = 60.0, 5.0
"""Each further failure doubles the delay, from one second to at most these."""
FORGET_SECONDS = 900.0
"""Time without a failure after which the earlier ones do not count."""
MAX_ADDRESSES = 10_000
"""Addresses whose failures are kept; the oldest are dropped."""
ALL = "all"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a name or address."""
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(value: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


class FailureLimit:
    """Failures of the last time, by address."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of failures, and the time of the last one."""

    def seconds_left(self, address: str) -> float:
        """Return how long an address has to wait until its next attempt; 0 if it may try now."""
        return max(self._left(_network(address), FREE_FAILURES, MAX_DELAY_SECONDS),
                   self._left(ALL, FREE_FAILURES_OF_ALL, MAX_DELAY_SECONDS_OF_ALL))  # fmt: skip

    def _left(self, key: str, free: int, most: float) -> float:
        count, last = self._failures.get(key, (0, 0.0))
        delay = 0.0 if count <= free else min(most, 2.0 ** min(count - free - 1, 30))
        return max(0.0, last + delay - time.monotonic())

    def add(self, address: str) -> None:
        """Record a failure of an address."""
        now = time.monotonic()
        for key in (_network(address), ALL):
            count, last = self._failures.pop(key, (0, now))
            self._failures[key] = (1 if now - last > FORGET_SECONDS else count + 1, now)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


def _network(address: str) -> str:
    """Return the address; of IPv6 the network of 64 bits, which one machine usually has."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)
