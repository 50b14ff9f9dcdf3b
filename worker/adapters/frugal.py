"""What makes a message cheap for a worker: kombu and Celery, but without the work they do anew for every message.

Named by `inbox`, whose channel and consumer are these and careful besides.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery.worker.consumer import Consumer
from kombu.transport import redis

EVENT_PAUSE_SECONDS: Final = 0.25  # how long events for monitors wait for others, to be published together


class FrugalChannel(redis.Channel):
    """A channel that keeps its Redis client.

    kombu builds one for every acknowledgement, publication and look (0.4 ms each, some five a message). A client holds
    no connection; those are its pool's, and a new pool gets a new client.
    """

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[no-untyped-call]
        return self._kept


class FrugalConsumer(Consumer):  # type: ignore[misc]
    """A consumer that publishes the events of many messages together, not each in the loop's next turn."""

    _flush_by = 0.0  # until then a flush is under way

    def on_send_event_buffered(self) -> None:
        """Have what is buffered published a moment from now, in the loop's own thread."""
        now = time.monotonic()
        if self.hub and now >= self._flush_by:
            self._flush_by = now + EVENT_PAUSE_SECONDS
            self.hub.call_soon(self.hub.call_later, EVENT_PAUSE_SECONDS, self._flush_events)
