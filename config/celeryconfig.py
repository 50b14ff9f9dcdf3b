"""Celery's own settings, computed from `Settings` when the app first asks for them. Imports nothing of ours but config.

Public names are Celery settings and nothing else: a name Celery does not know is refused at the end of this file, so
a misspelt setting stops the worker instead of being ignored.
"""

from celery.app.defaults import DEFAULTS as _DEFAULTS
from celery.exceptions import ImproperlyConfigured as _ImproperlyConfigured
from kombu.entity import Exchange as _Exchange
from kombu.entity import Queue as _Queue

from config.settings import load_settings as _load_settings

_settings = _load_settings()
_url = _settings.broker()

# --- the tasks ------------------------------------------------------------------------------------------------------
include = ("tasks.intake", "tasks.evidence", "tasks.delivery", "tasks.runs", "tasks.sweep")

# --- the wire: JSON only, by name, one queue for each kind of work ----------------------------------------------------
accept_content = ["json"]
result_accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"
event_serializer = "json"
task_queues = tuple(
    _Queue(name, _Exchange(name), routing_key=name) for name in ("intake", "evidence", "delivery", "runs", "sweep")
)
task_routes = {
    "release.submit": {"queue": "intake"},
    "release.withdraw": {"queue": "intake"},
    "evidence.submit": {"queue": "intake"},
    "evidence.collect": {"queue": "evidence"},
    "delivery.prepare": {"queue": "delivery"},
    "delivery.publish": {"queue": "delivery"},
    "run.step": {"queue": "runs"},
    "fleet.sweep": {"queue": "sweep"},
}
task_default_queue = "sweep"
task_create_missing_queues = False

# --- no results, and back-off lives in the database -------------------------------------------------------------------
result_backend = None
task_ignore_result = True
task_publish_retry = False  # a lost wake is made good by the sweeper; a frozen Redis must not hold a task

# --- acknowledgement: early; the intake tasks alone say `acks_late` ---------------------------------------------------
task_acks_late = False
task_acks_on_failure = True
task_reject_on_worker_lost = False
worker_cancel_long_running_tasks_on_connection_loss = False  # threads cannot be cancelled

# --- the worker: threads, one message in hand for each ----------------------------------------------------------------
worker_pool = "threads"
worker_concurrency = _settings.worker_threads
worker_prefetch_multiplier = 1
worker_disable_prefetch = True
worker_disable_rate_limits = True
worker_consumer = "worker.adapters.inbox:CarefulConsumer"
worker_enable_remote_control = True
worker_detect_quorum_queues = False
worker_send_task_events = True
task_send_sent_event = False  # the sender's representation of arguments would travel in it
task_track_started = False
worker_soft_shutdown_timeout = _settings.soft_shutdown_seconds
worker_enable_soft_shutdown_on_idle = True
worker_hijack_root_logger = False
worker_redirect_stdouts = False

# --- the broker -------------------------------------------------------------------------------------------------------
broker_url = _url
broker_use_ssl = _settings.broker_tls() or False
broker_connection_timeout = _settings.broker_connect_timeout_seconds
broker_connection_retry = True
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # a worker outlives any outage of Redis
broker_channel_error_retry = True
broker_heartbeat = 0
broker_pool_limit = _settings.worker_threads + 4  # no sender waits for another
broker_pool_acquire_timeout = _settings.broker_connect_timeout_seconds
broker_transport_options = {
    "visibility_timeout": _settings.visibility_timeout_seconds,  # for intake, the only late acknowledgement
    "unacked_restore_interval": 10,  # with the throttle of 1: lost intake returns within 10 s of its timeout
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 30,  # whoever died while handing messages back holds the others up no longer
    "global_keyprefix": _settings.broker_key_prefix,
    **({"master_name": _settings.broker_sentinel_master} if _settings.broker_sentinel_master else {}),
    "socket_timeout": _settings.broker_timeout_seconds,
    "socket_connect_timeout": _settings.broker_connect_timeout_seconds,
    "socket_keepalive": True,
    "health_check_interval": 25,
    "retry_on_timeout": False,
    "max_retries": 1,  # a publisher connects once more, then says that Redis is away
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}

# --- beat: the sweeper's clock, in memory; two of them do no harm -----------------------------------------------------
beat_scheduler = "celery.beat:Scheduler"
beat_max_loop_interval = _settings.sweep_interval_seconds
beat_schedule = {
    "fleet.sweep": {
        "task": "fleet.sweep",
        "schedule": _settings.sweep_interval_seconds,
        "kwargs": {"version": 1},
        "options": {"argsrepr": "", "kwargsrepr": ""},
    }
}

timezone = "UTC"
enable_utc = True

_unknown = sorted(name for name in globals() if name[0] != "_" and name not in _DEFAULTS)
if _unknown:
    raise _ImproperlyConfigured(f"no setting of Celery: {', '.join(_unknown)}")
