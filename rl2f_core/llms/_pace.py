"""How fast an endpoint is asked, and when it is not asked at all: rate limits, and a breaker for one that is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Clock = Callable[[], float]


class Pacer:
    """Spreads requests evenly over time, for all threads together.

    Args:
        requests_per_minute: None is no limit.
        tokens_per_minute: Of prompts and answers; None is no limit.
        clock: Seconds that only grow.
    """

    def __init__(
        self, requests_per_minute: float | None, tokens_per_minute: float | None, clock: Clock = time.monotonic
    ) -> None:
        self._seconds_a_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_a_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._next_request = self._next_token = self._not_before = 0.0

    def reserve(self, tokens: int) -> float:
        """Take the next place in the queue; seconds to wait until its turn. `tokens` is an estimate."""
        with self._lock:
            now = self._clock()
            at = max(now, self._next_request, self._next_token, self._not_before)
            self._next_request = at + self._seconds_a_request
            self._next_token = at + self._seconds_a_token * tokens
            return at - now

    def used(self, estimate: int, tokens: int) -> None:
        """Correct an estimate by what a request used."""
        with self._lock:
            self._next_token += self._seconds_a_token * (tokens - estimate)

    def hold(self, seconds: float) -> None:
        """Nobody asks for so long: the endpoint wished it."""
        with self._lock:
            self._not_before = max(self._not_before, self._clock() + seconds)


class Breaker:
    """Stops asking an endpoint that keeps failing.

    After `limit` requests in a row were given up, nothing is asked for `seconds`; then single tries find out whether it
    is back, and one message closes the breaker again.
    """

    def __init__(self, limit: int, seconds: float, clock: Clock = time.monotonic) -> None:
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._until = 0.0
        self._last = ""

    def state(self) -> str:
        """closed (all is well), open (do not ask), or trial (ask once, without another try)."""
        with self._lock:
            if self._failed < self.limit:
                return "closed"
            return "open" if self._clock() < self._until else "trial"

    def refusal(self) -> str:
        """Why nothing is asked, for people."""
        with self._lock:
            left = max(0.0, self._until - self._clock())
            return f"Not asked: {self._failed} requests in a row failed, the next try is in {left:.0f} s. {self._last}"

    def succeeded(self) -> None:
        """A message came."""
        with self._lock:
            self._failed = 0

    def gave_up(self, what: str) -> None:
        """A request failed for good."""
        with self._lock:
            self._failed += 1
            self._last = what
            if self._failed >= self.limit:
                self._until = self._clock() + self.seconds
