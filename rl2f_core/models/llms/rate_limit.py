"""Rate limiter and circuit breaker of an endpoint; only the endpoint's event loop calls them."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class RateLimiter:
    """Spreads requests and their prompt and completion tokens evenly over time; None is unlimited."""

    def __init__(
        self, requests_per_minute: float | None, tokens_per_minute: float | None, clock: Clock = time.monotonic
    ) -> None:
        self._seconds_per_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock = clock
        self._next_request = self._next_token = 0.0

    def reserve(self, tokens: int) -> float:
        """Return the seconds until the next start; `tokens` is an estimate."""
        now = self._clock()
        at = max(now, self._next_request, self._next_token)
        self._next_request = at + self._seconds_per_request
        self._next_token = at + self._seconds_per_token * tokens
        return at - now

    def correct_estimate(self, estimate: int, tokens: int) -> None:
        """Replace a request's estimate by its actual token count."""
        self._next_token += self._seconds_per_token * (tokens - estimate)


class CircuitBreaker:
    """Blocks requests to an endpoint that keeps failing.

    After `limit` failed requests in a row, the breaker is open for `seconds`. Then single tries are allowed; one
    success closes the breaker.
    """

    def __init__(self, limit: int, seconds: float, clock: Clock = time.monotonic) -> None:
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        self._failed = 0
        self._until = 0.0
        self._last = ""

    def state(self) -> str:
        """Return closed (normal), open (no requests), or trial (one try without retries)."""
        if self._failed < self.limit:
            return "closed"
        return "open" if self._clock() < self._until else "trial"

    def refusal(self) -> str:
        """Return the error message while the breaker is open."""
        left = max(0.0, self._until - self._clock())
        return f"Request skipped: {self._failed} requests in a row failed; next try in {left:.0f} s. {self._last}"

    def record_success(self) -> None:
        """Close the breaker."""
        self._failed = 0

    def record_failure(self, what: str) -> None:
        """Count a request that failed after all retries."""
        self._failed += 1
        self._last = what
        if self._failed >= self.limit:
            self._until = self._clock() + self.seconds
