"""The whole schema on one page. Rules live in `domain`; transitions in `leases`; nothing here executes.

Times are float seconds since the epoch by the database's clock and end in `_at`. Documents are stored as the exact
canonical text that was hashed and signed, never as a database JSON type. Columns that the row checks of the state
machine judge carry no CHECK constraint: a damaged row must be readable, so that it can be refused and left as it is.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

# A row that may be claimed once it is due. Every partial index and every claim uses this text, so they match.
DUE = "status IN ('pending', 'retry_wait')"
LEASED = "status = 'leased'"
DONE = "status = 'succeeded'"
EVIDENCE_POISON = "last_error_code = 'evidence.quarantined'"
DELIVERY_POISON = "last_error_code = 'cms.delivery.quarantined'"
OPEN_OR_ACKNOWLEDGED = "status IN ('pending', 'leased', 'retry_wait', 'succeeded')"
# A delivery whose bytes may be at the CMS without our knowing; no newer delivery of its source may be claimed.
UNSETTLED = "(status = 'leased' OR in_doubt OR last_error_code = 'cms.outcome_unknown')"
# When a delivery last became due or was last woken, whichever came later: a sweep takes the oldest first, so that
# rows which stay unclaimable (guided, waiting for an older one) take turns with the others.
WAKE_ORDER = "(CASE WHEN last_woken_at > next_attempt_at THEN last_woken_at ELSE next_attempt_at END)"

AUTO_ID = BigInteger().with_variant(Integer, "sqlite")


def lease_columns() -> list[Column[object]]:
    """Return fresh columns of the bounded-attempt machine (SPEC section 4), shared by all leased tables."""
    return [
        Column("status", String, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("max_attempts", Integer, nullable=False),
        Column("next_attempt_at", Float, nullable=False),
        Column("lease_owner", String),
        Column("lease_token", String),
        Column("lease_expires_at", Float),
        Column("last_error_code", String),
        Column("created_at", Float, nullable=False),
        Column("updated_at", Float, nullable=False),
    ]


# --- intake ---------------------------------------------------------------------------------------------------------

submissions = Table(
    "submissions",  # accepted documents, exactly as they came, for auditors; one row per document
    metadata,
    Column("document_sha256", String, primary_key=True),
    Column("kind", String, nullable=False),  # release | withdrawal | evidence
    Column("site_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("kid", String, nullable=False),
    Column("body", Text, nullable=False),
    Column("accepted_at", Float, nullable=False),
    Index("submissions_by_event", "event_id"),
)

rejections = Table(
    "rejections",  # what intake refused; the body only where the settings say so
    metadata,
    Column("rejection_id", AUTO_ID, primary_key=True, autoincrement=True),
    Column("document_sha256", String, nullable=False),  # of the message bytes as they came
    Column("size_bytes", Integer, nullable=False),
    Column("message", String, nullable=False),  # the wire name it came by
    Column("code", String, nullable=False),
    Column("path", String, nullable=False),
    Column("body", Text),
    Column("times", Integer, nullable=False),
    Column("first_at", Float, nullable=False),
    Column("last_at", Float, nullable=False),
    UniqueConstraint("document_sha256", "code", "path", name="rejections_once"),
    Index("rejections_by_time", "last_at", "rejection_id"),
)

sources = Table(
    "sources",  # one row per source text of a site; its lock orders intake against the delivery's claim
    metadata,
    Column("site_id", String, nullable=False),
    Column("source_id", String, nullable=False),
    Column("created_at", Float, nullable=False),
    PrimaryKeyConstraint("site_id", "source_id"),
)

events = Table(
    "events",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("site_id", String, nullable=False),
    Column("website_version", String, nullable=False),
    Column("source_id", String, nullable=False),
    Column("source_sequence", BigInteger, nullable=False),
    Column("plan_id", String, nullable=False),
    Column("event_sha256", String, nullable=False),
    Column("document", Text, nullable=False),  # canonical change event, source text included
    Column("state", String, nullable=False),  # open | delivered | superseded | withdrawn
    Column("superseded_by", String),  # the newer event's id
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("last_woken_at", Float),
    UniqueConstraint("site_id", "source_id", "source_sequence", name="events_sequence_once"),
    Index("events_by_plan", "plan_id"),
    Index("events_by_version", "site_id", "website_version"),
    Index("events_by_creation", "created_at", "event_id"),
    Index(
        "events_open",  # the readiness walk of the sweeper goes round it by id
        "event_id",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

withdrawals = Table(
    "withdrawals",  # kept even when they overtake their event; per site, so that no site's word shadows another's
    metadata,
    Column("event_id", String, nullable=False),
    Column("site_id", String, nullable=False),
    Column("document_sha256", String, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("applied_at", Float),
    PrimaryKeyConstraint("event_id", "site_id"),
)

plan_jobs = Table(
    "plan_jobs",
    metadata,
    Column("plan_id", String, nullable=False),
    Column("job_id", String, nullable=False),
    Column("target_locale", String, nullable=False),
    PrimaryKeyConstraint("plan_id", "job_id"),
    Index("plan_jobs_by_job", "job_id"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("site_id", String, nullable=False),
    Column("target_locale", String, nullable=False),
    Column("current_result_sha256", String),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("job_id", String, nullable=False),
    Column("result_sha256", String, nullable=False),
    Column("target_sha256", String, nullable=False),
    Column("document", Text, nullable=False),  # canonical result without `replaces`, candidate included
    Column("created_at", Float, nullable=False),
    Column("replaced_at", Float),
    PrimaryKeyConstraint("job_id", "result_sha256"),
)

# --- evidence and approval ------------------------------------------------------------------------------------------

evidence = Table(
    "evidence",  # one row per (event, plan, job, result, revision): the right to ask for evidence, bounded
    metadata,
    Column("request_id", String, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("plan_id", String, nullable=False),
    Column("job_id", String, nullable=False),
    Column("result_sha256", String, nullable=False),
    Column("evidence_revision", String, nullable=False),
    *lease_columns(),
    Column("site_id", String),  # fair share; null on rows that only the store's own surface made
    Column("provider", String),  # the review route of the site's policy; null likewise
    Column("awaited_since_at", Float),  # when a provider first said "accepted, not yet"
    Column("renewed_at", Float),  # the row asks again: only an approval given since then answers it
    Column("last_woken_at", Float),
    UniqueConstraint(
        "event_id", "plan_id", "job_id", "result_sha256", "evidence_revision", name="evidence_binding_once"
    ),
    Index("evidence_by_event", "event_id", "created_at", "request_id"),
    Index("evidence_by_job", "job_id"),
    Index(
        "evidence_due_by_site",  # claims jump from site to site and from route to route along it
        "site_id",
        "provider",
        "next_attempt_at",
        "created_at",
        "request_id",
        postgresql_where=text(DUE),
        sqlite_where=text(DUE),
    ),
    Index(
        "evidence_due",
        "next_attempt_at",
        "created_at",
        "request_id",
        postgresql_where=text(DUE),
        sqlite_where=text(DUE),
    ),
    Index(
        "evidence_succeeded",  # the sweeper follows it to events that became ready
        "updated_at",
        "request_id",
        postgresql_where=text(DONE),
        sqlite_where=text(DONE),
    ),
    Index(
        "evidence_quarantined",
        "updated_at",
        postgresql_where=text(EVIDENCE_POISON),
        sqlite_where=text(
            "status = 'failed'"
        ),  # SQLite drops no column that an index speaks of, and one may be repaired
    ),
    Index(
        "evidence_leased",
        "lease_expires_at",
        "site_id",
        postgresql_where=text(LEASED),
        sqlite_where=text(LEASED),
    ),
)

pushed_responses = Table(
    "pushed_responses",  # the inbox: finished reviews that a provider handed in; the newest is used at the next claim
    metadata,
    Column("document_sha256", String, primary_key=True),  # its signed bytes are in `submissions`
    Column("request_id", String, nullable=False),
    Column("received_at", Float, nullable=False),
    Index("pushed_responses_by_request", "request_id", "received_at"),
)

evidence_history = Table(
    "evidence_history",  # rows of a replaced result, outside claim, mark_approved and statuses
    metadata,
    Column("history_id", AUTO_ID, primary_key=True, autoincrement=True),
    Column("request_id", String, nullable=False),
    Column("job_id", String, nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("row_json", Text, nullable=False),
    Index("evidence_history_by_job", "job_id"),
)

setbacks = Table(
    "setbacks",  # every attempt that ended in anything but success; appended, never changed
    metadata,
    Column("setback_id", AUTO_ID, primary_key=True, autoincrement=True),
    Column("subject", String, nullable=False),  # evidence | delivery
    Column("subject_id", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease_owner", String),
    Column("outcome", String, nullable=False),  # retry_wait | failed | released
    Column("code", String, nullable=False),
    Column("retry_after_seconds", Float),  # the wait the other side asked for
    Column("ended_at", Float, nullable=False),
    Index("setbacks_by_subject", "subject", "subject_id", "setback_id"),
)

receipts = Table(
    "receipts",  # the proofs behind each approval, kept for auditors
    metadata,
    Column("request_id", String, nullable=False),
    Column("purpose", String, nullable=False),  # quality | human | independent
    Column("receipt", Text, nullable=False),
    Column("receipt_sha256", String, nullable=False),
    Column("kid", String),
    Column("binding", Text, nullable=False),  # the canonical binding it was verified for
    Column("verified_at", Float, nullable=False),
    PrimaryKeyConstraint("request_id", "purpose"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("approval_id", String, primary_key=True),
    Column("job_id", String, nullable=False),
    Column("site_id", String, nullable=False),
    Column("result_sha256", String, nullable=False),
    Column("target_sha256", String, nullable=False),
    Column("request_id", String, nullable=False, unique=True),
    Column("policy_sha256", String, nullable=False),
    Column("approved_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("revoked_at", Float),
    Column("revoked_reason", String),
    Column("revoked_by", String),
    Column("document", Text, nullable=False),  # canonical approval
    Column("signature", Text, nullable=False),
    Column("kid", String, nullable=False),
    Index("approvals_by_job", "job_id", "expires_at"),
    Index("approvals_by_expiry", "expires_at", "approval_id"),
)

public_keys = Table(
    "public_keys",  # every public key that was ever used to trust something, for auditors
    metadata,
    Column("purpose", String, nullable=False),
    Column("kid", String, nullable=False),
    Column("thumbprint", String, nullable=False),
    Column("jwk", Text, nullable=False),
    Column("first_seen_at", Float, nullable=False),
    PrimaryKeyConstraint("purpose", "kid", "thumbprint"),
)

# --- delivery -------------------------------------------------------------------------------------------------------

deliveries = Table(
    "deliveries",  # the signed outbox; what is stored here is what is sent, byte for byte
    metadata,
    Column("delivery_id", String, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("site_id", String, nullable=False),
    Column("source_id", String, nullable=False),
    Column("source_sequence", BigInteger, nullable=False),
    Column("plan_id", String, nullable=False),
    Column("payload", Text, nullable=False),  # canonical publication, texts included
    Column("payload_sha256", String, nullable=False),
    Column("signature", Text, nullable=False),
    Column("kid", String, nullable=False),
    *lease_columns(),
    Column("in_doubt", Boolean, nullable=False),  # sent, but no verified answer
    Column("sent_at", Float),  # when the last send was begun
    Column("doubt_since_at", Float),  # when the present doubt began
    Column("lookups", Integer, nullable=False),
    Column("acknowledged_at", Float),
    Column("renewal_asked_at", Float),  # an operator had its approvals renewed: a successor takes its place, unsent
    Column("last_woken_at", Float),
    Index(
        "deliveries_one_per_event",
        "event_id",
        unique=True,
        postgresql_where=text(OPEN_OR_ACKNOWLEDGED),
        sqlite_where=text(OPEN_OR_ACKNOWLEDGED),
    ),
    Index("deliveries_by_event", "event_id", "created_at"),
    Index(
        "deliveries_leased",
        "lease_expires_at",
        postgresql_where=text(LEASED),
        sqlite_where=text(LEASED),
    ),
    Index(
        "deliveries_unsettled",
        "site_id",
        "source_id",
        "source_sequence",
        postgresql_where=text(UNSETTLED),
        sqlite_where=text(UNSETTLED),
    ),
    Index(
        "deliveries_quarantined",
        "updated_at",
        postgresql_where=text(DELIVERY_POISON),
        sqlite_where=text(DELIVERY_POISON),
    ),
    Index(
        "deliveries_wakes",
        text(WAKE_ORDER),
        "delivery_id",
        postgresql_where=text(DUE),
        sqlite_where=text(DUE),
    ),
)

delivery_history = Table(
    "delivery_history",  # failed rows that an operator's retry followed with the very same bytes
    metadata,
    Column("history_id", AUTO_ID, primary_key=True, autoincrement=True),
    Column("delivery_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("row_json", Text, nullable=False),  # without the payload, which the successor holds
    Index("delivery_history_by_event", "event_id", "history_id"),
)

delivery_permits = Table(
    "delivery_permits",  # a guided site's delivery is sent only while a release run's step permits it
    metadata,
    Column("delivery_id", String, primary_key=True),
    Column("run_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("granted_at", Float, nullable=False),
    Index("delivery_permits_by_run", "run_id", "attempt_id"),
)

delivery_answers = Table(
    "delivery_answers",  # signed acknowledgements, signed look-up answers, the operator's word; appended only
    metadata,
    Column("answer_id", AUTO_ID, primary_key=True, autoincrement=True),
    Column("delivery_id", String, nullable=False),
    Column("kind", String, nullable=False),  # acknowledgement | lookup | operator
    Column("outcome", String, nullable=False),  # accepted | absent | closed
    Column("nonce", String),
    Column("document", Text, nullable=False),  # canonical answer, or the operator's statement
    Column("signature", Text),
    Column("kid", String),
    Column("answered_at", Float, nullable=False),
    Index("delivery_answers_by_delivery", "delivery_id", "answer_id"),
)

# --- release runs ---------------------------------------------------------------------------------------------------

release_runs = Table(
    "release_runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("document", LargeBinary, nullable=False),  # the canonical record; bytes, since a plan may hold any text
    Column("record_digest", String, nullable=False),
    Column("status", String, nullable=False),
    Index("release_runs_by_status", "status"),  # what metrics count
)

run_commands = Table(
    "run_commands",  # what the fleet is to do for a run: one row per attempt at a step, worked at in short visits
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("run_id", String, nullable=False),
    Column("step_id", String, nullable=False),
    Column("site_id", String, nullable=False),
    *lease_columns(),
    Column("last_woken_at", Float),
    Index("run_commands_by_run", "run_id"),
    Index(
        "run_commands_succeeded",
        "updated_at",
        "attempt_id",
        postgresql_where=text("status = 'succeeded'"),
        sqlite_where=text("status = 'succeeded'"),
    ),
    Index(
        "run_commands_due",
        "next_attempt_at",
        "created_at",
        "attempt_id",
        postgresql_where=text(DUE),
        sqlite_where=text(DUE),
    ),
    Index(
        "run_commands_leased",
        "lease_expires_at",
        postgresql_where=text(LEASED),
        sqlite_where=text(LEASED),
    ),
)

operator_requests = Table(
    "operator_requests",  # commands of operators that must take effect once, however often they are sent
    metadata,
    Column("request_id", String, primary_key=True),
    Column("command", String, nullable=False),
    Column("arguments_sha256", String, nullable=False),
    Column("answer", Text, nullable=False),  # what the first one was told, as JSON
    Column("requested_at", Float, nullable=False),
)

installation = Table(
    "installation",  # one row: the random name of this database, from which the workspace fingerprint is made
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)

# --- what holds the fleet back ---------------------------------------------------------------------------------------

pauses = Table(
    "pauses",  # an operator's word that new work stops: for all, for one site or for one review route
    metadata,
    Column("scope", String, nullable=False),  # all | site | provider
    Column("name", String, nullable=False),  # the site's or the route's; empty for all
    Column("owner", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("paused_at", Float, nullable=False),
    Column("until_at", Float),  # ends by itself then; null: until it is resumed
    PrimaryKeyConstraint("scope", "name"),
)

breakers = Table(
    "breakers",  # one row for each review route and each site's CMS that ever failed
    metadata,
    Column("kind", String, nullable=False),  # provider | cms
    Column("name", String, nullable=False),  # the route's, or the site's
    Column("is_open", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),  # a permit counts at one only
    Column("failures", Integer, nullable=False),  # in a row
    Column("pause_seconds", Float, nullable=False),
    Column("open_until_at", Float),
    Column("reason", String),  # the code that opened it
    Column("opened_by", String),
    Column("probe_token", String),  # the token of the lease that tries it
    Column("probe_expires_at", Float),
    Column("updated_at", Float, nullable=False),
    PrimaryKeyConstraint("kind", "name"),
)

limits = Table(
    "limits",  # one lock for each bound on calls, and what a rate has left; the bounds are the policy file's
    metadata,
    Column("kind", String, nullable=False),  # provider | site
    Column("name", String, nullable=False),  # `*`: every site that the policy file does not name
    Column("next_call_at", Float, nullable=False),  # of a rate: from then on one more call may begin
    PrimaryKeyConstraint("kind", "name"),
)

# --- workers --------------------------------------------------------------------------------------------------------

drains = Table(
    "drains",  # workers that announced their end: a lease of theirs that ran out is no sign of poison
    metadata,
    Column("worker_id", String, primary_key=True),
    Column("announced_at", Float, nullable=False),
)

measures = Table(
    "measures",  # what workers counted and timed: they add to it now and then, nothing else reads or changes it
    metadata,
    Column("measure", String, nullable=False),  # attempts | provider_seconds | cms_seconds | ...
    Column("subject", String, nullable=False),  # evidence | delivery, the route, or publish | lookup
    Column("outcome", String, nullable=False),
    Column("part", String, nullable=False),  # a code, or what a bucket's calls took at most
    Column("value", Float, nullable=False),
    PrimaryKeyConstraint("measure", "subject", "outcome", "part"),
)

# --- what is kept, and what was removed -----------------------------------------------------------------------------

legal_holds = Table(
    "legal_holds",  # an operator's word that nothing of a site or an event may be removed; released ones stay as rows
    metadata,
    Column("hold_id", String, primary_key=True),
    Column("scope", String, nullable=False),  # site | event
    Column("name", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("placed_at", Float, nullable=False),
    Column("released_at", Float),  # null: in force
    Column("released_by", String),
    Column("release_reason", String),
    Index("legal_holds_by_name", "scope", "name"),
)

prunings = Table(
    "prunings",  # each removal of what nobody needs any more: on whose word, what, and how far it has come
    metadata,
    Column("pruning_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("before_at", Float, nullable=False),  # only what ended before
    Column("kinds", String, nullable=False),  # sorted, with commas between
    Column("states", String, nullable=False),  # of events; likewise
    Column("site_id", String),  # null: of all
    Column("removed", Text, nullable=False),  # rows removed so far by kind, as JSON
    Column("cursor_at", Float),  # where the walk over the events goes on: the last one's creation and id
    Column("cursor_id", String),
    Column("started_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("ended_at", Float),  # null: it can be taken up again
)

pruned_events = Table(
    "pruned_events",  # what was removed of each event, by kind, as JSON
    metadata,
    Column("pruning_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("removed", Text, nullable=False),
    Column("pruned_at", Float, nullable=False),
    PrimaryKeyConstraint("pruning_id", "event_id"),
    Index("pruned_events_by_event", "event_id"),
)

# --- traces ---------------------------------------------------------------------------------------------------------

event_traces = Table(
    "event_traces",  # where traces are on: the trace of each event, so that a swept message goes on with it
    metadata,
    Column("event_id", String, primary_key=True),
    Column("traceparent", String, nullable=False),  # of W3C trace context: the span that the event's others hang from
    Column("began_at", Float, nullable=False),
)

# --- the sweeper ----------------------------------------------------------------------------------------------------

sweeps = Table(
    "sweeps",
    metadata,
    Column("name", String, primary_key=True),
    Column("swept_at", Float, nullable=False),
    Column("cursor", String),  # where the walk over the open events goes on
)

unprepared_events = Table(
    "unprepared_events",  # found ready by a sweep or a command, and not prepared yet: sweeps look again until they are
    metadata,
    Column("event_id", String, primary_key=True),
    Column("looked_at", Float, nullable=False),
    Index("unprepared_events_by_look", "looked_at", "event_id"),
)

sweep_times = Table(
    "sweep_times",  # what the last whole sweep measured; one row
    metadata,
    Column("name", String, primary_key=True),
    Column("began_at", Float, nullable=False),
    Column("took_seconds", Float, nullable=False),
    Column("wakes", Integer, nullable=False),
    Column("longest_unwoken_seconds", Float, nullable=False),
)

# The read-only face that producers may query: one row per document ever received.
SUBMISSION_STATUS = """
CREATE VIEW submission_status AS
SELECT document_sha256, 'accepted' AS state, NULL AS code, accepted_at AS at FROM submissions
UNION ALL
SELECT r.document_sha256, 'rejected' AS state, r.code AS code, r.last_at AS at FROM rejections r
WHERE NOT EXISTS (SELECT 1 FROM submissions s WHERE s.document_sha256 = r.document_sha256)
  AND NOT EXISTS (SELECT 1 FROM rejections n WHERE n.document_sha256 = r.document_sha256
                  AND (n.last_at > r.last_at OR (n.last_at = r.last_at AND n.rejection_id > r.rejection_id)))
"""
