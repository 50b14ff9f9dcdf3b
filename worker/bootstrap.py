"""The composition root: settings in, services out. The one place that knows which adapter stands behind which port."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from config.settings import CmsEndpoint, ProviderEndpoint, Remote, Settings, SettingsError, VerifierEndpoint
from worker.adapters.calls import CallLoop
from worker.adapters.cms.http import HttpCms
from worker.adapters.endpoint import Credentials, Endpoint, SecretFile, SecretVariable
from worker.adapters.http import HttpClient
from worker.adapters.keys import FileKeys
from worker.adapters.policies import FilePolicies
from worker.adapters.providers.checks import ChecksProvider
from worker.adapters.providers.http import HttpProvider
from worker.adapters.providers.local import LocalProvider
from worker.adapters.timed import TimedCms, TimedProvider
from worker.adapters.verifiers.http import HttpVerifier
from worker.adapters.verifiers.jws import JwsVerifier
from worker.adapters.vitals import Vitals
from worker.domain.canonical import parse_strict
from worker.domain.checks.policy import parse_check_policy
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.domain.quarantine import Quarantine
from worker.flow.meters import Meters
from worker.flow.services import Cms, Deadlines, Keys, Queue, ReceiptVerifier, ReviewProvider, Services
from worker.flow.tracing.port import NoTraces, Traces
from worker.store.engine import open_engine
from worker.store.schema_version import check_schema
from worker.store.warming import warm_up

DEFAULT: Final = "default"  # the CMS entry that serves every site without one of its own
MAX_RULES: Final = 1024 * 1024  # bytes of a file with rules for the checks
PURPOSES: Final = ("quality", "human", "independent")


@dataclass(frozen=True, kw_only=True)
class Plant:
    """What one process runs on: its services, the settings they came from, and how to put them away."""

    services: Services
    settings: Settings
    pid: int
    calls: CallLoop
    traces: Traces

    def check(self) -> None:
        """Raise `Blocked` where this process could not work: a database of another version, unusable policies or keys."""
        check_schema(self.services.engine)
        self.services.policies.for_site(DEFAULT)
        self.services.keys.trust("submission")

    def warm_up(self) -> None:
        """Make what the first locale would wait for; raise `Unavailable` where the database cannot answer."""
        warm_up(self.services.engine)

    def close(self) -> None:
        """End the call loop and close all connections. Idempotent."""
        self.calls.close()
        self.traces.close()
        self.services.engine.dispose()


def build_plant(
    settings: Settings,
    *,
    worker_id: str,
    queue: Queue,
    vitals: Vitals | None = None,
) -> Plant:
    """Build the services of a process from its settings. Opens the SQLite file; connects to nothing else.

    Raises `SettingsError` or `Blocked` for settings that cannot be used, `Unavailable` when SQLite cannot be opened.
    """
    keys = FileKeys(settings.private_keys(), settings.trusted_keys())
    vitals = vitals or Vitals()
    calls = CallLoop()
    reviews = HttpClient(ca_file=settings.ca_file)
    # A kept connection that the CMS closes just as we write would leave a delivery in doubt for nothing.
    deliveries = HttpClient(ca_file=settings.ca_file, idle_seconds=0)
    for client in (reviews, deliveries):
        calls.at_close(client.aclose)
    meters, traces = Meters(), _traces(settings, worker_id)
    outside = _Outside(settings=settings, keys=keys, reviews=reviews, deliveries=deliveries, meters=meters)
    services = Services(
        engine=open_engine(settings.database(), pool_size=settings.database_pool_size),
        worker_id=worker_id,
        policies=FilePolicies(settings.policy_file, defaults=policy_defaults(settings), check=lease_check(settings)),
        providers={name: outside.provider(name, entry) for name, entry in settings.providers.items()},
        verifiers={name: outside.verifier(settings.verifiers.get(name, VerifierEndpoint())) for name in PURPOSES},
        cms=_by_site(settings, outside),
        keys=keys,
        queue=queue,
        calls=calls,
        deadlines=_deadlines(settings),
        batch_rows=settings.batch_rows,
        concurrent_calls=settings.concurrent_calls,
        keep_rejected_bodies=settings.keep_rejected_bodies,
        quarantine=Quarantine(expiries=settings.quarantine_expiries, within_seconds=settings.quarantine_within_seconds),
        jitter=lambda: random.random() / 2,  # noqa: S311 - spreads retries; nothing secret
        draining=vitals.is_draining,
        cut=vitals.is_cut,
        claimed=vitals.claimed,
        meters=meters,
        traces=traces,
    )
    return Plant(services=services, settings=settings, pid=os.getpid(), calls=calls, traces=traces)


def _traces(settings: Settings, worker_id: str) -> Traces:
    if not settings.traces:
        return NoTraces()
    from worker.adapters.traces import otlp_traces  # a library that takes its time; nobody else pays for it

    token = settings.traces_token_file
    headers = {} if token is None else dict([SecretFile(token).header()])
    ca_file = None if settings.ca_file is None else str(settings.ca_file)
    return otlp_traces(settings.traces_endpoint, worker_id=worker_id, headers=headers, ca_file=ca_file)


@dataclass(frozen=True, kw_only=True)
class _Outside:
    """Makes the adapters that reach the outside."""

    settings: Settings
    keys: Keys
    reviews: HttpClient
    deliveries: HttpClient
    meters: Meters

    def provider(self, route: str, entry: ProviderEndpoint) -> ReviewProvider:
        return TimedProvider(self._provider(entry), route, self.meters.provider_call)

    def _provider(self, entry: ProviderEndpoint) -> ReviewProvider:
        if entry.kind == "local":
            return LocalProvider(self._receipt)
        if entry.kind == "checks":
            return self._checks(entry)
        return HttpProvider(self.reviews, self._endpoint(entry))

    def _receipt(self, purpose: str, document: Mapping[str, Any]) -> str:
        return self.keys.sign(purpose, document).signature

    def _checks(self, entry: ProviderEndpoint) -> ReviewProvider:
        """Return the checks with the route behind them, which is never another one of checks: no route goes in rings."""
        behind = None if entry.then is None else self.settings.providers.get(entry.then)
        if entry.then is not None and (behind is None or behind.kind == "checks"):
            raise SettingsError(f"LOCSEAL_PROVIDERS: `then` names {entry.then!r}, which is no other kind of route")
        try:
            rules = {} if entry.rules_file is None else parse_strict(entry.rules_file.read_bytes(), max_bytes=MAX_RULES)
        except OSError:
            raise SettingsError("LOCSEAL_PROVIDERS: the rules_file of a checks route cannot be read") from None
        return ChecksProvider(
            self._receipt,
            policy=parse_check_policy(rules),
            then=None if behind is None or entry.then is None else self.provider(entry.then, behind),
            always_then=entry.always_then,
        )

    def verifier(self, entry: VerifierEndpoint) -> ReceiptVerifier:
        if entry.kind == "jws":
            return JwsVerifier(self.keys.trust)
        return HttpVerifier(self.reviews, self._endpoint(entry))

    def cms(self, site_id: str, entry: CmsEndpoint) -> Cms:
        cms = HttpCms(
            self.deliveries,
            self._endpoint(entry),
            site_id=site_id,
            trust=lambda: self.keys.trust("acknowledgement"),
            has_lookup=entry.has_lookup,
            is_idempotent=entry.is_idempotent,
        )
        return TimedCms(cms, self.meters.cms_call)

    def _endpoint(self, entry: ProviderEndpoint | VerifierEndpoint | CmsEndpoint) -> Endpoint:
        if entry.url is None:
            raise SettingsError("an endpoint needs a url")
        return Endpoint(
            url=entry.url,
            credentials=_credentials(entry),
            allow_loopback_http=self.settings.allow_loopback_http,
        )


def _credentials(entry: Remote) -> Credentials | None:
    if entry.token_file is not None:
        return SecretFile(entry.token_file)
    return None if entry.token_variable is None else SecretVariable(entry.token_variable)


def _by_site(settings: Settings, outside: _Outside) -> Callable[[str], Cms]:
    def cms(site_id: str) -> Cms:
        entry = settings.cms.get(site_id) or settings.cms.get(DEFAULT)
        if entry is None:
            raise Blocked("cms.not_configured", "name this site's CMS, or a default one, in LOCSEAL_CMS")
        return outside.cms(site_id, entry)

    for name in settings.cms:
        cms(name)  # a bad address is refused at start, not at the first delivery
    return cms


def policy_defaults(settings: Settings) -> dict[str, object]:
    """Return the members of a policy that the settings decide where the policy file does not."""
    return {
        "evidence_lease_seconds": settings.evidence_lease_seconds,
        "delivery_lease_seconds": settings.delivery_lease_seconds,
    }


def lease_check(settings: Settings) -> Callable[[SitePolicy], None]:
    """Return what refuses a policy whose leases are shorter than the calls made under them, with a `ValueError`."""
    return lambda policy: settings.refuse_short_leases(policy.evidence_lease_seconds, policy.delivery_lease_seconds)


def _deadlines(settings: Settings) -> Deadlines:
    return Deadlines(
        provider_seconds=settings.provider_deadline_seconds,
        verifier_seconds=settings.verifier_deadline_seconds,
        signer_seconds=settings.signer_deadline_seconds,
        send_seconds=settings.send_deadline_seconds,
        lookup_seconds=settings.lookup_deadline_seconds,
        margin_seconds=settings.margin_seconds,
    )
