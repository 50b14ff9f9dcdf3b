"""The wire: message names, queues and argument names, as literals that producers depend on. Independent of modules."""

from __future__ import annotations

from typing import Final

VERSION: Final = 1

RELEASE_SUBMIT: Final = "release.submit"
RELEASE_WITHDRAW: Final = "release.withdraw"
EVIDENCE_SUBMIT: Final = "evidence.submit"
EVIDENCE_COLLECT: Final = "evidence.collect"
DELIVERY_PREPARE: Final = "delivery.prepare"
DELIVERY_PUBLISH: Final = "delivery.publish"
RUN_STEP: Final = "run.step"
FLEET_SWEEP: Final = "fleet.sweep"

# message -> (queue, arguments beside `version`)
WIRE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    RELEASE_SUBMIT: ("intake", ("submission",)),
    RELEASE_WITHDRAW: ("intake", ("withdrawal",)),
    EVIDENCE_SUBMIT: ("intake", ("response",)),
    EVIDENCE_COLLECT: ("evidence", ("event_id",)),
    DELIVERY_PREPARE: ("delivery", ("event_id",)),
    DELIVERY_PUBLISH: ("delivery", ("event_id",)),
    RUN_STEP: ("runs", ("run_id", "step_id", "attempt_id")),
    FLEET_SWEEP: ("sweep", ()),
}
