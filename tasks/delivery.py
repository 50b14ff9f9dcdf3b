"""Delivery: prepare what is ready, publish what was prepared."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, services
from worker.domain.delivery import Advance
from worker.domain.messages import DELIVERY_PREPARE, DELIVERY_PUBLISH
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery


@app.task(name=DELIVERY_PREPARE, base=FleetTask)
def prepare(event_id: str) -> Advance:
    """Prepare the one delivery of an event whose locales are all approved."""
    return prepare_delivery(services(), event_id)


@app.task(name=DELIVERY_PUBLISH, base=FleetTask)
def publish(event_id: str) -> Advance:
    """Publish an event's prepared delivery, or ask what became of one in doubt."""
    return publish_delivery(services(), event_id)
