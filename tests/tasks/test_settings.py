"""The settings: defaults that hold together, misspelt names, values that cannot work, secrets that are not repeated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from config.settings import PREFIX, Settings, SettingsError, load_settings

SECRET = "hunter2-CANARY"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from an environment without settings of ours."""
    for name in list(os.environ):
        if name.startswith((PREFIX, "CELERY_")):
            monkeypatch.delenv(name)


def refused(**overrides: Any) -> str:
    with pytest.raises(SettingsError) as refusal:
        load_settings(**overrides)
    return str(refusal.value)


def test_the_defaults_hold_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any setting: a private SQLite file, a local Redis, the product's numbers."""
    monkeypatch.setenv("XDG_STATE_HOME", "/var/lib/ops")
    found = load_settings()
    assert found.database() == "sqlite:////var/lib/ops/locseal/locseal.db"
    assert found.broker() == "redis://127.0.0.1:6379/0"
    assert found.private_keys() == Path("/var/lib/ops/locseal/keys/private")
    assert (found.evidence_lease_seconds, found.delivery_lease_seconds) == (300.0, 300.0)
    assert (found.sweep_interval_seconds, found.recovery_bound_seconds, found.sweep_wakes) == (2.0, 10.0, 200)


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting is LOCSEAL_ and its name; structured ones are JSON."""
    monkeypatch.setenv("LOCSEAL_BATCH_ROWS", "24")
    monkeypatch.setenv("LOCSEAL_CMS", '{"default": {"url": "https://cms.invalid/api/", "has_lookup": false}}')
    found = load_settings()
    assert found.batch_rows == 24
    assert (found.cms["default"].url, found.cms["default"].has_lookup) == ("https://cms.invalid/api", False)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("LOCSEAL_BROKR_URL", "LOCSEAL_BROKR_URL is no setting; did you mean LOCSEAL_BROKER_URL?"),
        ("locseal_batch_row", "locseal_batch_row is no setting; did you mean LOCSEAL_BATCH_ROWS?"),
        ("LOCSEAL_XYZZY", "LOCSEAL_XYZZY is no setting"),
        ("CELERY_BROKER_URL", "CELERY_BROKER_URL would bypass the settings; unset it and set LOCSEAL_BROKER_URL"),
    ],
)
def test_a_misspelt_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    """A name that is none of ours stops the start instead of being ignored."""
    monkeypatch.setenv(name, SECRET)
    assert refused() == says


def test_names_of_the_test_suite_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCSEAL_TEST_* says where tests find their services; a process of the product ignores it."""
    monkeypatch.setenv("LOCSEAL_TEST_POSTGRES", "postgresql+psycopg://x")
    assert isinstance(load_settings(), Settings)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"broker_url": f"redis+cluster://:{SECRET}@r:1/0"}, "LOCSEAL_BROKER_URL: names a Redis Cluster"),
        ({"broker_url": f"rediscluster://:{SECRET}@r:1/0"}, "LOCSEAL_BROKER_URL: names a Redis Cluster"),
        ({"broker_url": f"redis://:{SECRET}@r1:1,r2:1/0"}, "LOCSEAL_BROKER_URL: lists several nodes"),
        ({"broker_url": f"amqp://u:{SECRET}@r/"}, "LOCSEAL_BROKER_URL: must start with one of redis://"),
        ({"database_url": f"mysql://u:{SECRET}@db/x"}, "LOCSEAL_DATABASE_URL: must start with sqlite:///"),
        ({"providers": {"default": {"url": f"https://u:{SECRET}@p.invalid"}}}, "put the credential into token_file"),
        (
            {"providers": {"default": {"url": f"https://p.invalid?token={SECRET}"}}},
            "put the credential into token_file",
        ),
        (
            {"cms": {"default": {"url": "https://c.invalid", "token_file": "/t", "token_variable": "TOKEN"}}},
            "give token_file or token_variable, not both",
        ),
        (
            {"cms": {"default": {"url": "https://c.invalid", "token_variable": "LOCSEAL_TOKEN"}}},
            "token_variable must not begin with LOCSEAL_",
        ),
        ({"providers": {"default": {"kind": "local", "url": "https://p.invalid"}}}, "a local one has none"),
        ({"verifiers": {"quality": {"kind": "http"}}}, "an http verifier needs a url"),
        ({"verifiers": {"taste": {}}}, "LOCSEAL_VERIFIERS"),
        ({"cms": {"default": {"url": "ftp://cms.invalid"}}}, "must be an http or https URL with a host"),
        ({"batch_rows": 0}, "LOCSEAL_BATCH_ROWS: Input should be greater than or equal to 1"),
        ({"evidence_lease_seconds": 3601}, "LOCSEAL_EVIDENCE_LEASE_SECONDS"),
        ({"provider_deadline_seconds": 270}, "evidence_lease_seconds must exceed"),
        ({"send_deadline_seconds": 281}, "delivery_lease_seconds must be at least"),
        ({"intake_wait_seconds": 500}, "visibility_timeout_seconds must be at least 4 * intake_wait_seconds"),
        ({"intake_pause_seconds": 11}, "intake_pause_max_seconds must not be shorter"),
        ({"sweep_interval_seconds": 20}, "recovery_bound_seconds must not be shorter"),
        ({"worker_threads": 12}, "database_pool_size must exceed worker_threads"),
        ({"log_level": SECRET}, "LOCSEAL_LOG_LEVEL"),
        ({"broker_key_prefix": "a b"}, "LOCSEAL_BROKER_KEY_PREFIX"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(overrides: dict[str, Any], says: str) -> None:
    """Each refusal names the setting and what it must be, and repeats no value."""
    sentence = refused(**overrides)
    assert says in sentence
    assert SECRET not in sentence


def test_calls_must_fit_into_the_lease_exactly() -> None:
    """Provider, two verifiers, signer and margin must be less than the evidence lease; send and look-up may fill theirs."""
    assert isinstance(load_settings(provider_deadline_seconds=269.9), Settings)
    assert "(300 s)" in refused(provider_deadline_seconds=270)
    assert isinstance(load_settings(send_deadline_seconds=280), Settings)


def test_passwords_come_from_files(tmp_path: Path) -> None:
    """A password file is read at use, quoted into its URL, and never shown."""
    file = tmp_path / "password"
    file.write_text("p/w:@\n")
    found = load_settings(
        broker_url="redis://redis:6379/0",
        broker_password_file=file,
        database_url="postgresql+psycopg://locseal@db/locseal",
        database_password_file=file,
    )
    assert found.broker() == "redis://:p%2Fw%3A%40@redis:6379/0"
    assert found.database() == "postgresql+psycopg://locseal:p%2Fw%3A%40@db/locseal"
    assert "p%2F" not in repr(found)
    assert "p/w" not in repr(found)


def test_a_password_in_two_places_or_nowhere_is_refused(tmp_path: Path) -> None:
    """A URL with a password beside a password file, or a file that cannot be read, is refused at use."""
    file = tmp_path / "password"
    file.write_text("one")
    with pytest.raises(SettingsError, match="holds a password already"):
        load_settings(broker_url=f"redis://:{SECRET}@r/0", broker_password_file=file).broker()
    with pytest.raises(SettingsError, match="LOCSEAL_BROKER_PASSWORD_FILE: the file cannot be read"):
        load_settings(broker_url="redis://r/0", broker_password_file=tmp_path / "none").broker()


def test_a_setting_is_not_shown_with_its_secret() -> None:
    """URLs that may hold a password are hidden wherever settings are printed."""
    found = load_settings(
        broker_url=f"redis://:{SECRET}@r/0;redis://:{SECRET}@s/0", database_url=f"postgresql+psycopg://a:{SECRET}@db/x"
    )
    assert SECRET not in repr(found) + str(found) + found.model_dump_json()


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("redis://127.0.0.1:6379/0", False),
        ("redis://localhost/0", False),
        ("redis+socket:///run/redis.sock", False),
        ("redis://redis:6379/0", True),
        ("redis://:word@redis:6379/0", False),
        ("rediss://redis:6379/0", False),
        ("sentinel://:word@one:26379;sentinel://two:26379", True),
    ],
)
def test_a_broker_that_anybody_can_write_to_is_noticed(url: str, is_open: bool) -> None:
    """A Redis beyond this machine needs a password or TLS; the worker warns where it has neither."""
    master = "watched" if url.startswith("sentinel") else None
    assert load_settings(broker_url=url, broker_sentinel_master=master).broker_is_open() is is_open


def test_a_rediss_broker_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS means: certificate and name are checked, against our own CA where one is set; nothing turns that off."""
    assert load_settings().broker_tls() is None
    plain = load_settings(broker_url="rediss://r:6380/0").broker_tls()
    assert plain == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    own = load_settings(
        broker_url="rediss://r:6380/0",
        broker_ca_file="/ca.pem",
        broker_certificate_file="/me.pem",
        broker_certificate_key_file="/me.key",
    )
    assert own.broker_tls() == plain | {"ssl_ca_certs": "/ca.pem", "ssl_certfile": "/me.pem", "ssl_keyfile": "/me.key"}


def test_a_ca_for_the_database_means_verify_full() -> None:
    """The connection checks certificate and name; other parameters of the URL stay."""
    found = load_settings(database_url="postgresql+psycopg://w@db/x?application_name=w", database_ca_file="/etc/ca.pem")
    assert found.database().endswith("?application_name=w&sslmode=verify-full&sslrootcert=/etc/ca.pem")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"broker_url": f"rediss://:{SECRET}@r:1/0?ssl_cert_reqs=none"}, "must carry no ssl_* parameter"),
        ({"broker_ca_file": "/ca.pem"}, "need a broker_url that begins with rediss://"),
        ({"broker_url": "sentinel://r:1/0"}, "broker_sentinel_master need each other"),
        ({"broker_sentinel_master": "m"}, "broker_sentinel_master need each other"),
        ({"broker_url": "rediss://r:1/0", "broker_certificate_file": "/me.pem"}, "go together"),
        ({"database_ca_file": "/ca.pem"}, "database_ca_file needs a database_url of PostgreSQL"),
        (
            {"database_url": "postgresql+psycopg://w@db/x?sslmode=disable", "database_ca_file": "/ca.pem"},
            "without ssl parameters of its own",
        ),
    ],
)
def test_half_a_tls_is_refused(overrides: dict[str, Any], says: str) -> None:
    """Verification cannot be turned off by the way, and a CA that would go unused is no setting."""
    found = refused(**overrides)
    assert says in found
    assert SECRET not in found
