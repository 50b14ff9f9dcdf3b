"""What is done every few seconds beside the work: again and again, through refusals, and a last time at the end."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from worker.adapters.ticker import Ticker
from worker.domain.errors import Unavailable


def test_it_is_done_again_and_again_and_a_last_time() -> None:
    """Refusals are logged by their code and stop nothing; after `stop` nothing runs any more."""
    done: list[str] = []
    often_enough = threading.Event()

    def work() -> None:
        done.append(threading.current_thread().name)
        if len(done) == 3:
            often_enough.set()
        raise Unavailable("database.unavailable", "away")

    with capture_logs() as logged:
        ticker = Ticker("measures", work, seconds=0.01)
        ticker.start()
        assert often_enough.wait(60)
        ticker.stop()
    assert done[-1] == threading.current_thread().name
    assert set(done[:-1]) == {"locseal-measures"}
    assert "locseal-measures" not in {thread.name for thread in threading.enumerate()}
    assert {(line["event"], line["code"]) for line in logged} == {("measures.blocked", "database.unavailable")}
    assert len(logged) == len(done)


def test_it_waits_before_the_first_time() -> None:
    """A process that ends at once does it once: at its end."""
    done: list[int] = []
    ticker = Ticker("measures", lambda: done.append(1), seconds=3600)
    ticker.start()
    ticker.stop()
    assert done == [1]
