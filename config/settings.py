"""Every knob of the product: its unit, default and bounds, read from `LOCSEAL_*`. Plain values; nothing of ours here.

A misspelt name is refused at start, and so is a set of values that cannot work together (a deadline longer than the
lease it runs under). Secrets come from files (`*_FILE`) or are kept as `SecretStr`; no error text repeats a value.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LOCSEAL_"
TEST_PREFIX = "LOCSEAL_TEST_"  # names of the test suite, not of the product

BROKER_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")
DATABASE_SCHEMES = ("sqlite", "postgresql+psycopg")


class SettingsError(ValueError):
    """Settings that cannot be used. The text names the setting and what it must be, never the value."""


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "locseal"


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http or https URL with a host")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "must carry no user, password, query or fragment; put the credential into token_file or token_variable"
        )
    return url.rstrip("/")


def _broker(url: SecretStr) -> SecretStr:
    for one in url.get_secret_value().split(";"):
        scheme = one.partition("://")[0]
        if "ssl_" in one.partition("?")[2]:
            raise ValueError("must carry no ssl_* parameter; TLS is verified, with broker_ca_file where it is set")
        if "cluster" in scheme:
            raise ValueError("names a Redis Cluster, which Celery cannot use as a broker; use one Redis or Sentinel")
        if scheme not in BROKER_SCHEMES or "://" not in one:
            raise ValueError(f"must start with one of {', '.join(s + '://' for s in BROKER_SCHEMES)}")
        if "," in urlsplit(one).netloc.rpartition("@")[2]:
            raise ValueError("lists several nodes like a Redis Cluster; name one Redis, or Sentinels joined by ';'")
    return url


def _database(url: SecretStr | None) -> SecretStr | None:
    if url is not None and url.get_secret_value().partition("://")[0] not in DATABASE_SCHEMES:
        raise ValueError("must start with sqlite:/// or postgresql+psycopg://")
    return url


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class Part(BaseModel):
    """One end of a connection to the outside, as JSON inside a setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Remote(Part):
    """What is called over HTTP: its credential is read again for every call, from a file or from an environment variable.

    The variable's name begins otherwise than with LOCSEAL_, since names that are no setting are refused there.
    """

    token_file: Path | None = None
    token_variable: str | None = Field(None, pattern=r"^[A-Z_][A-Z0-9_]*$")

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if self.token_file is not None and self.token_variable is not None:
            raise ValueError("give token_file or token_variable, not both")
        if self.token_variable is not None and self.token_variable.startswith(PREFIX):
            raise ValueError(f"token_variable must not begin with {PREFIX}")
        return self


class ProviderEndpoint(Remote):
    """A review route: an HTTP endpoint, the built-in `checks`, or `local`, which finds everything good (demo, tests).

    Both of the latter sign receipts with keys of this machine. `then` names the route that reviews what passed the
    checks and needs more than they give (legal content, low confidence), with `always_then` all that passed;
    `rules_file` holds the rules of the checks, JSON.
    """

    kind: Literal["http", "local", "checks"] = "http"
    url: Endpoint | None = None
    then: str | None = None
    always_then: bool = False
    rules_file: Path | None = None

    @model_validator(mode="after")
    def _kind_has_its_own(self) -> Self:
        if (self.kind == "http") == (self.url is None):
            raise ValueError("an http provider needs a url, a local one has none")
        if self.kind != "checks" and (self.then is not None or self.always_then or self.rules_file is not None):
            raise ValueError("then, always_then and rules_file belong to checks")
        if self.always_then and self.then is None:
            raise ValueError("always_then needs the route in then")
        return self


class VerifierEndpoint(Remote):
    """A receipt verifier: `jws` checks the signature against the trust set, `http` asks a service."""

    kind: Literal["http", "jws"] = "jws"
    url: Endpoint | None = None

    @model_validator(mode="after")
    def _http_has_url(self) -> Self:
        if (self.kind == "http") == (self.url is None):
            raise ValueError("an http verifier needs a url, a jws one has none")
        return self


class CmsEndpoint(Remote):
    """A CMS: where it is, and what it promises. One with neither promise fails every delivery that ends in doubt."""

    url: Endpoint
    has_lookup: bool = True
    is_idempotent: bool = False


class Settings(BaseSettings):
    """All settings of one process. Read once at start; frozen."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # --- where state lives ------------------------------------------------------------------------------------------
    state_dir: Path = Field(default_factory=_state_home, description="private directory of the embedded database")
    database_url: Annotated[SecretStr | None, AfterValidator(_database)] = Field(
        None, description="postgresql+psycopg://... of a fleet; unset: SQLite in state_dir"
    )
    database_password_file: Path | None = Field(None, description="file with the database password, put into the URL")
    broker_url: Annotated[SecretStr, AfterValidator(_broker)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis or Sentinel; alternates joined by ';'"
    )
    database_ca_file: Path | None = Field(None, description="CA of PostgreSQL: verify-full, name and certificate")
    broker_password_file: Path | None = Field(None, description="file with the Redis password, put into the URL")
    broker_sentinel_master: str | None = Field(
        None, description="name of the Redis that the Sentinels of broker_url watch"
    )
    broker_ca_file: Path | None = Field(None, description="CA of a rediss:// broker; unset: the system's")
    broker_certificate_file: Path | None = Field(None, description="our certificate, where Redis asks for one")
    broker_certificate_key_file: Path | None = Field(None, description="the private key of that certificate")
    broker_key_prefix: str = Field(
        "", max_length=64, pattern=r"^[A-Za-z0-9_.:-]*$", description="before every Redis key; same for all producers"
    )

    # --- keys, policies, the outside --------------------------------------------------------------------------------
    keys_private_dir: Path | None = Field(None, description="our private keys; unset: state_dir/keys/private")
    keys_trust_dir: Path | None = Field(None, description="trusted public keys; unset: state_dir/keys/trust")
    policy_file: Path | None = Field(None, description="JSON {default, sites}: the policy of each site")
    providers: dict[str, ProviderEndpoint] = Field(default_factory=dict, description="review routes by name, as JSON")
    verifiers: dict[Literal["quality", "human", "independent"], VerifierEndpoint] = Field(
        default_factory=dict, description="receipt verifiers by purpose, as JSON; unset: jws"
    )
    cms: dict[str, CmsEndpoint] = Field(
        default_factory=dict, description="CMS endpoints by site id, as JSON; 'default' serves every other site"
    )

    allow_loopback_http: bool = Field(False, description="let endpoints be http:// on this machine (sandbox, demo)")
    ca_file: Path | None = Field(None, description="certificates to trust for outside calls; unset: the system's")

    # --- deadlines and leases, in seconds ---------------------------------------------------------------------------
    provider_deadline_seconds: float = Field(60.0, gt=0, le=3000, description="one provider call, in total")
    verifier_deadline_seconds: float = Field(10.0, gt=0, le=600, description="one receipt verification, in total")
    signer_deadline_seconds: float = Field(5.0, gt=0, le=600, description="one signature of ours")
    send_deadline_seconds: float = Field(30.0, gt=0, le=1500, description="one publication to the CMS, in total")
    lookup_deadline_seconds: float = Field(15.0, gt=0, le=600, description="one look-up at the CMS, in total")
    margin_seconds: float = Field(5.0, gt=0, le=600, description="left of a lease before a call may begin")
    evidence_lease_seconds: float = Field(300.0, gt=0, le=3600, description="default lease on one evidence row")
    delivery_lease_seconds: float = Field(300.0, gt=0, le=3600, description="default lease on one delivery")

    # --- how much at once -------------------------------------------------------------------------------------------
    batch_rows: int = Field(50, ge=1, le=500, description="most due rows one claim takes")
    concurrent_calls: int = Field(50, ge=1, le=1000, description="most provider calls in flight in this process")
    worker_threads: int = Field(8, ge=1, le=128, description="tasks at once in one worker process")
    database_pool_size: int = Field(12, ge=1, le=200, description="most database connections of one process")

    # --- intake -----------------------------------------------------------------------------------------------------
    keep_rejected_bodies: bool = Field(False, description="keep the text of refused submissions in the database")
    intake_pause_seconds: float = Field(0.5, gt=0, le=60, description="first pause when the database is away; doubles")
    intake_pause_max_seconds: float = Field(10.0, gt=0, le=60, description="longest such pause")
    intake_wait_seconds: float = Field(120.0, gt=0, le=3600, description="wait in the slot, then hand back to Redis")

    # --- recovery ---------------------------------------------------------------------------------------------------
    sweep_interval_seconds: float = Field(2.0, gt=0, le=60, description="a sweep younger than this is not repeated")
    recovery_bound_seconds: float = Field(10.0, gt=0, le=600, description="no wake is sent again within this time")
    sweep_wakes: int = Field(200, ge=1, le=10_000, description="most wakes one sweep sends")
    quarantine_expiries: int = Field(3, ge=1, le=1000, description="leases of one row that run out before it fails")
    quarantine_within_seconds: float = Field(259_200.0, gt=0, le=31_536_000, description="the span in which they count")

    # --- the broker -------------------------------------------------------------------------------------------------
    visibility_timeout_seconds: int = Field(
        900, ge=5, le=86_400, description="unacknowledged intake is handed out again after this; same on every app"
    )
    broker_timeout_seconds: float = Field(4.0, gt=0, le=60, description="longest wait for one answer of Redis")
    broker_connect_timeout_seconds: float = Field(2.0, gt=0, le=60, description="longest wait for a connection")

    # --- stopping, and being watched --------------------------------------------------------------------------------
    grace_period_seconds: float = Field(
        30.0, ge=3, le=3600, description="a worker asked to stop is gone after this; open calls end 2 s before"
    )
    soft_shutdown_seconds: float = Field(20.0, ge=0, le=3600, description="time for tasks in hand on a quick stop")
    stall_seconds: float = Field(
        300.0, ge=5, le=86_400, description="a worker that claims none of the due work it may take for so long ends"
    )
    heartbeat_file: Path | None = Field(None, description="what a live worker touches; unset: state_dir/heartbeat")
    liveness_seconds: float = Field(30.0, ge=2, le=3600, description="an older heartbeat is that of a dead worker")

    # --- what people see --------------------------------------------------------------------------------------------
    measure_interval_seconds: float = Field(10.0, gt=0, le=600, description="a worker adds its counts to the database")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console", "auto"] = Field("json", description="auto: console on a terminal")
    traces: bool = Field(False, description="send the trace of each event to an OpenTelemetry collector")
    traces_endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        "http://127.0.0.1:4318/v1/traces", description="where its OTLP/HTTP receiver takes traces"
    )
    traces_token_file: Path | None = Field(None, description="bearer token for it")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_names(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        refuse_unknown_names(os.environ)
        return values

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        self.refuse_short_leases(self.evidence_lease_seconds, self.delivery_lease_seconds)
        if self.intake_pause_max_seconds < self.intake_pause_seconds:
            raise ValueError("intake_pause_max_seconds must not be shorter than intake_pause_seconds")
        if self.visibility_timeout_seconds < 4 * self.intake_wait_seconds:
            raise ValueError(
                "visibility_timeout_seconds must be at least 4 * intake_wait_seconds, or Redis hands out a "
                "submission again while a worker still has it in hand"
            )
        if self.stall_seconds <= self._evidence_seconds():
            raise ValueError(
                "stall_seconds must exceed the provider deadline, two verifier deadlines, the signer deadline and the "
                f"margin together ({self._evidence_seconds():g} s), or slow calls look like a stall"
            )
        if self.recovery_bound_seconds < self.sweep_interval_seconds:
            raise ValueError("recovery_bound_seconds must not be shorter than sweep_interval_seconds")
        if (self.broker_certificate_file is None) != (self.broker_certificate_key_file is None):
            raise ValueError("broker_certificate_file and broker_certificate_key_file go together")
        if self.broker_url.get_secret_value().startswith("sentinel://") != (self.broker_sentinel_master is not None):
            raise ValueError("a sentinel:// broker_url and broker_sentinel_master need each other")
        if self.broker_tls() is None and (self.broker_ca_file or self.broker_certificate_file):
            raise ValueError("broker_ca_file and broker_certificate_file need a broker_url that begins with rediss://")
        if self.database_ca_file and (self.database_url is None or "ssl" in self._database_query()):
            raise ValueError("database_ca_file needs a database_url of PostgreSQL without ssl parameters of its own")
        if self.database_pool_size < self.worker_threads + 1:
            raise ValueError("database_pool_size must exceed worker_threads, or tasks wait for each other")
        return self

    def refuse_short_leases(self, evidence_lease_seconds: float, delivery_lease_seconds: float) -> None:
        """Raise `ValueError` where the calls made under a lease could outlast it; also for the leases of a policy.

        One line of its text for each lease that is too short, beginning with the member's name.
        """
        short = []
        evidence = self._evidence_seconds()
        if evidence >= evidence_lease_seconds:
            short.append(
                "evidence_lease_seconds must exceed the provider deadline, two verifier deadlines, the signer "
                f"deadline and the margin together ({evidence:g} s)"
            )
        delivery = self.lookup_deadline_seconds + self.send_deadline_seconds + self.margin_seconds
        if delivery > delivery_lease_seconds:
            short.append(
                "delivery_lease_seconds must be at least the look-up deadline, the send deadline and the margin "
                f"together ({delivery:g} s)"
            )
        if short:
            raise ValueError("\n".join(short))

    def _evidence_seconds(self) -> float:
        calls = self.provider_deadline_seconds + 2 * self.verifier_deadline_seconds + self.signer_deadline_seconds
        return calls + self.margin_seconds

    def heartbeat(self) -> Path:
        """Return the file that shows whether the worker of these settings is alive."""
        return self.heartbeat_file or self.state_dir / "heartbeat"

    def broker(self) -> str:
        """Return the broker URL with the password of `broker_password_file` put in. A secret: never log it."""
        return _with_password(self.broker_url.get_secret_value(), self.broker_password_file, "BROKER_PASSWORD_FILE")

    def broker_tls(self) -> dict[str, str | bool] | None:
        """Return how a rediss:// broker is verified, for Celery's `broker_use_ssl`; None where it speaks no TLS."""
        if not self.broker_url.get_secret_value().startswith("rediss://"):
            return None
        files = {
            "ssl_ca_certs": self.broker_ca_file,
            "ssl_certfile": self.broker_certificate_file,
            "ssl_keyfile": self.broker_certificate_key_file,
        }
        given = {name: str(path) for name, path in files.items() if path is not None}
        return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}

    def broker_is_open(self) -> bool:
        """Tell whether anybody on the network could write to the broker: no password, no TLS, not this machine."""
        for one in self.broker().split(";"):
            parts = urlsplit(one)
            is_local = parts.hostname in {None, "localhost", "127.0.0.1", "::1"}
            if not (is_local or parts.password or parts.scheme == "rediss"):
                return True
        return False

    def database(self) -> str:
        """Return the database URL with the password put in; SQLite in the state directory where none is set."""
        if self.database_url is None:
            return f"sqlite:///{self.state_dir / 'locseal.db'}"
        url = _with_password(
            self.database_url.get_secret_value(), self.database_password_file, "DATABASE_PASSWORD_FILE"
        )
        if self.database_ca_file is None:
            return url
        verify = f"sslmode=verify-full&sslrootcert={quote(str(self.database_ca_file))}"
        return f"{url}{'&' if '?' in url else '?'}{verify}"

    def _database_query(self) -> str:
        return "" if self.database_url is None else self.database_url.get_secret_value().partition("?")[2]

    def private_keys(self) -> Path:
        """Return the directory of our private keys."""
        return self.keys_private_dir or self.state_dir / "keys" / "private"

    def trusted_keys(self) -> Path:
        """Return the directory of the trust sets."""
        return self.keys_trust_dir or self.state_dir / "keys" / "trust"


def load_settings(**overrides: Any) -> Settings:
    """Return the settings of this process, or raise `SettingsError` with one sentence for each that is wrong."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(item) for item in error.errors(include_input=False))) from None


def refuse_unknown_names(environment: Mapping[str, str]) -> None:
    """Raise `ValueError` where a `LOCSEAL_*` name is no setting, or Celery's own variable would bypass ours."""
    names = {name.upper() for name in Settings.model_fields}
    for name in sorted(environment):
        upper = name.upper()
        if upper.startswith(PREFIX) and upper.removeprefix(PREFIX) not in names and not upper.startswith(TEST_PREFIX):
            near = difflib.get_close_matches(upper.removeprefix(PREFIX), sorted(names), n=1)
            raise ValueError(f"{name} is no setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
        if upper in {"CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"}:
            raise ValueError(f"{name} would bypass the settings; unset it and set LOCSEAL_BROKER_URL")


def _sentence(item: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in item["loc"])
    text = str(item["msg"]).removeprefix("Value error, ")
    return f"{PREFIX}{path.upper()}: {text}" if path else text


def _with_password(url: str, file: Path | None, name: str) -> str:
    if file is None:
        return url
    try:
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{PREFIX}{name}: the file cannot be read") from None
    scheme, _, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    if at and ":" in user:
        raise SettingsError(f"{PREFIX}{name}: the URL holds a password already; keep one of the two")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}"
