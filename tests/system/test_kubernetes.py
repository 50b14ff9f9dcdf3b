"""config/deploy/kubernetes, without a cluster: against the schemas of Kubernetes, against our commands, and run in parts."""

from __future__ import annotations

import importlib
import json
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import psycopg
import pytest
import yaml
from sqlalchemy import text
from sqlalchemy.engine import URL
from typer.main import get_command

from config.celeryconfig import task_queues
from config.settings import Settings
from tests.keyring import Keyring
from worker.adapters.key_files import read_private
from worker.cli.main import COMMANDS
from worker.store.engine import open_engine, writing
from worker.store.schema_version import migrate

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "config" / "deploy" / "kubernetes"
VERSION = "1.34"
STOP_SPARE_SECONDS = 10  # between our own end and Kubernetes' kill
KEDA = {
    "ScaledObject": {"scaleTargetRef", "triggers", "minReplicaCount", "maxReplicaCount"},
    "TriggerAuthentication": {"secretTargetRef"},
}


def items() -> list[tuple[str, dict[str, Any]]]:
    """Return every object of every file, with the file's name."""
    found = []
    for path in sorted(PLACE.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            found += [(path.name, one) for one in document.get("items", [document])]
    return found


ITEMS = items()
OF_KEDA = [one for _, one in ITEMS if one["apiVersion"].startswith("keda.sh/")]
OF_KUBERNETES = [one for _, one in ITEMS if not one["apiVersion"].startswith("keda.sh/")]
PODS = {one["metadata"]["name"]: one["spec"]["template"] for _, one in ITEMS if one["kind"] in {"Deployment", "Job"}}
DEPLOYMENTS = {one["metadata"]["name"]: one["spec"] for _, one in ITEMS if one["kind"] == "Deployment"}
WORKERS = {name: pod for name, pod in PODS.items() if "--queues" in pod["spec"]["containers"][0].get("command", [])}
SETTINGS = next(one["data"] for _, one in ITEMS if one["kind"] == "ConfigMap")


def name_of(one: Mapping[str, Any]) -> str:
    return f"{one['kind']}-{one['metadata']['name']}"


def containers(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


@pytest.mark.parametrize("one", OF_KUBERNETES, ids=name_of)
def test_kubernetes_takes_it(one: dict[str, Any]) -> None:
    """Strictly: every member is known, every required one is there, every value has its type."""
    kubernetes_validate.validate(one, VERSION, strict=True)


def test_the_check_refuses_what_is_wrong() -> None:
    """A misspelt member and a missing one are refused: the check above is one."""
    sound = next(one for one in OF_KUBERNETES if one["kind"] == "Deployment")
    for broken in (
        {**sound, "spec": {**sound["spec"], "replica": 2}},
        {**sound, "spec": {key: value for key, value in sound["spec"].items() if key != "selector"}},
    ):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, VERSION, strict=True)


@pytest.mark.parametrize("one", OF_KEDA, ids=name_of)
def test_keda_finds_what_it_needs(one: dict[str, Any]) -> None:
    """Its members, a target and a secret that are there, bounds that make sense, and all that its scalers ask for."""
    spec = one["spec"]
    assert KEDA[one["kind"]] <= spec.keys()
    if one["kind"] == "TriggerAuthentication":
        assert all(part.keys() == {"parameter", "name", "key"} for part in spec["secretTargetRef"])
        return
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    assert "replicas" not in DEPLOYMENTS[spec["scaleTargetRef"]["name"]]  # one of the two decides
    known = {other["metadata"]["name"] for other in OF_KEDA if other["kind"] == "TriggerAuthentication"}
    needed = {
        "postgresql": {"host", "port", "userName", "dbName", "sslmode", "query", "targetQueryValue"},
        "redis": {"address", "username", "listName", "listLength", "enableTLS"},
    }
    for trigger in spec["triggers"]:
        assert needed[trigger["type"]] <= trigger["metadata"].keys()
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert trigger["authenticationRef"]["name"] in known


def test_selectors_meet_labels() -> None:
    """Each Deployment, Service, budget and network policy selects pods that are there, a Deployment its own alone."""
    labels = {name: pod["metadata"]["labels"] for name, pod in PODS.items()}

    def selected(wanted: Mapping[str, str]) -> set[str]:
        return {name for name, own in labels.items() if wanted.items() <= own.items()}

    for _, one in ITEMS:
        spec = one.get("spec", {})
        if one["kind"] in {"Deployment", "PodDisruptionBudget"}:
            assert selected(spec["selector"]["matchLabels"]) == {one["metadata"]["name"]}
        elif one["kind"] == "Service":
            (pod,) = selected(spec["selector"])
            ports = {port["name"] for port in PODS[pod]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif one["kind"] == "NetworkPolicy" and "matchLabels" in spec["podSelector"]:
            assert selected(spec["podSelector"]["matchLabels"])
    stores = next(one["spec"] for _, one in ITEMS if one["metadata"]["name"] == "locseal-stores")
    assert selected(stores["podSelector"]["matchLabels"]) == set(PODS)
    assert stores["ingress"] == []


def test_each_queue_has_its_workers() -> None:
    """Every queue is read by exactly one Deployment, which is either scaled or has two replicas, and has a budget."""
    read = {
        pod["spec"]["containers"][0]["command"][pod["spec"]["containers"][0]["command"].index("--queues") + 1]: name
        for name, pod in WORKERS.items()
    }
    assert set(read) == {queue.name for queue in task_queues}
    budgets = {one["metadata"]["name"] for _, one in ITEMS if one["kind"] == "PodDisruptionBudget"}
    assert budgets == set(WORKERS)
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in OF_KEDA if one["kind"] == "ScaledObject"}
    for name in WORKERS:
        assert name in scaled or DEPLOYMENTS[name]["replicas"] >= 2
    assert (DEPLOYMENTS["locseal-beat"]["replicas"], DEPLOYMENTS["locseal-beat"]["strategy"]) == (
        1,
        {"type": "Recreate"},
    )


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_confined(name: str) -> None:
    """An ordinary user, no rights to gain, no service account token, nothing to write but memory, bounds on it."""
    pod = PODS[name]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    user = pod["securityContext"]
    assert (user["runAsNonRoot"], user["runAsUser"], user["seccompProfile"]) == (
        True,
        10001,
        {"type": "RuntimeDefault"},
    )
    for container in containers(PODS[name]):
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        assert "requests" in container["resources"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        if "emptyDir" in volume:
            assert volume["emptyDir"].keys() == {"medium", "sizeLimit"}
        elif "secret" in volume or "projected" in volume:
            source = volume.get("secret") or volume["projected"]
            assert source["defaultMode"] == 0o440


def test_images_are_of_this_version() -> None:
    """Every container runs the image of the version in pyproject.toml: never `latest`, never without a tag."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {container["image"] for pod in PODS.values() for container in containers(pod)}
    assert images == {f"locseal:{version}"}


def test_commands_are_ours() -> None:
    """What containers and probes run is a command of `locseal` that exists with these words, or celery on our app."""
    asked = [container["command"] for pod in PODS.values() for container in containers(pod)]
    for pod in PODS.values():
        for container in containers(pod):
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            asked += [probe["exec"]["command"] for probe in probes if "exec" in probe]
    for words in asked:
        if words[0] == "locseal":
            module, attribute, _ = COMMANDS[words[1]]
            command = get_command(getattr(importlib.import_module(f"worker.cli.{module}"), attribute))
            rest = words[2:]
            if hasattr(command, "commands"):
                command = command.commands[rest.pop(0)]
            given = {word for word in rest if word.startswith("--")}
            assert given <= {option for one in command.params for option in one.opts}, words
        else:
            assert words[:3] == ["celery", "-A", "worker.app"] or words[:2] == ["sh", "-ec"], words


def test_workers_are_probed_and_have_time_to_stop() -> None:
    """Alive by their heartbeat, ready by what they need; killed only after their own grace period has passed."""
    grace = float(SETTINGS["LOCSEAL_GRACE_PERIOD_SECONDS"])
    for pod in WORKERS.values():
        worker = pod["spec"]["containers"][0]
        assert worker["startupProbe"]["exec"]["command"] == ["locseal", "health", "live"]
        assert worker["livenessProbe"]["exec"]["command"] == ["locseal", "health", "live"]
        assert worker["readinessProbe"]["exec"]["command"] == ["locseal", "health", "ready"]
        assert pod["spec"]["terminationGracePeriodSeconds"] >= grace + STOP_SPARE_SECONDS


def test_settings_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The settings of the config map are settings of ours that work together; every file they name is mounted."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    taken = Settings()
    assert taken.broker_tls() is not None
    assert taken.database_ca_file is not None
    files = [Path(value) for name, value in SETTINGS.items() if name.endswith(("_FILE", "_DIR"))]
    for name, pod in WORKERS.items():
        mounts = {Path(mount["mountPath"]) for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        private = {"/keys/private"} if "initContainers" not in pod["spec"] else set()
        missing = [file for file in files if str(file) not in private and not mounts & {file, *file.parents}]
        assert missing == [], name


def test_a_queue_holds_only_the_keys_it_signs_with() -> None:
    """Evidence the approval key, delivery the publication key, runs both; intake and sweep hold none."""
    held = {}
    for name, pod in WORKERS.items():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        volume = volumes.get("secret-keys", {})
        sources = [one["secret"]["name"] for one in volume.get("projected", {}).get("sources", [])]
        held[name.removeprefix("locseal-")] = sources or [volume["secret"]["secretName"]] if volume else []
    assert held == {
        "evidence": ["locseal-approval-key"],
        "delivery": ["locseal-publication-key"],
        "runs": ["locseal-approval-key", "locseal-publication-key"],
        "intake": [],
        "sweep": [],
    }


def test_keys_of_a_secret_volume_become_usable(tmp_path: Path) -> None:
    """As Kubernetes mounts them (links) private keys are refused; what the init container makes of them is taken."""
    mount, keys = tmp_path / "secret", tmp_path / "keys"
    made = tmp_path / "made"
    Keyring().write(made / "private", made / "trust")
    data = mount / "..2026_11_30"
    data.mkdir(parents=True)
    (mount / "..data").symlink_to(data.name)
    for path in (made / "private").glob("*.jwk"):
        (data / path.name).write_bytes(path.read_bytes())
        (data / path.name).chmod(0o440)
        (mount / path.name).symlink_to(Path("..data") / path.name)
    assert {one.code for one in read_private(mount).findings} == {"keys.file.symlink"}
    words = next(one for one in containers(WORKERS["locseal-evidence"]) if one["name"] == "take-keys")["command"]
    script = words[2].replace("/secrets/keys", str(mount)).replace("/keys/private", str(keys / "private"))
    subprocess.run([*words[:2], script], check=True, cwd=tmp_path)
    taken = read_private(keys / "private")
    assert taken.findings == ()
    assert taken.keys.keys() == read_private(made / "private").keys.keys()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (keys / "private").iterdir()}
    assert modes == {0o400}
    assert stat.S_IMODE((keys / "private").stat().st_mode) & 0o077 == 0


@pytest.fixture(scope="module")
def backlog(new_postgres_database: Callable[[], URL]) -> str:
    """A database with 60,000 evidence rows: 3,000 due on site-1, 500 on a paused site, the others finished or later."""
    url = new_postgres_database()
    engine = open_engine(url)
    migrate(engine)

    def fill(conn: Any) -> None:
        conn.execute(
            text(
                "INSERT INTO evidence (request_id, event_id, plan_id, job_id, result_sha256, evidence_revision, status,"
                " attempts, max_attempts, next_attempt_at, created_at, updated_at, site_id, provider, lease_owner,"
                " lease_token, lease_expires_at)"
                " SELECT 'r' || n, 'e' || n, 'p', 'j' || n, 's', '1',"
                " CASE WHEN n <= 3500 THEN 'pending' WHEN n <= 3540 THEN 'leased' WHEN n <= 9000 THEN 'retry_wait'"
                " ELSE 'succeeded' END, 0, 5, CASE WHEN n <= 3540 THEN 1 ELSE 4e9 END, 1, 1,"
                " CASE WHEN n BETWEEN 3001 AND 3500 THEN 'paused-site' ELSE 'site-1' END, 'default',"
                " CASE WHEN n BETWEEN 3501 AND 3540 THEN 'w' END, CASE WHEN n BETWEEN 3501 AND 3540 THEN 't' END,"
                " CASE WHEN n BETWEEN 3501 AND 3540 THEN 4e9 END FROM generate_series(1, 60000) AS n"
            )
        )
        conn.execute(
            text(
                "INSERT INTO deliveries (delivery_id, event_id, site_id, source_id, source_sequence, plan_id, payload,"
                " payload_sha256, signature, kid, status, attempts, max_attempts, next_attempt_at, created_at,"
                " updated_at, in_doubt, lookups)"
                " SELECT 'd' || n, 'e' || n, 'site-1', 's' || n, 1, 'p', '', '', '', 'k',"
                " CASE WHEN n <= 70 THEN 'retry_wait' ELSE 'succeeded' END, 0, 5,"
                " CASE WHEN n <= 50 THEN 1 ELSE 4e9 END, 1, 1, false, 0 FROM generate_series(1, 20000) AS n"
            )
        )
        conn.execute(text("INSERT INTO pauses VALUES ('site', 'paused-site', 'ops', 'trial', 1, NULL)"))

    writing(engine, fill)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("VACUUM ANALYZE"))
    engine.dispose()
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def query_of(name: str) -> str:
    (trigger,) = next(one["spec"]["triggers"] for one in OF_KEDA if name_of(one) == f"ScaledObject-locseal-{name}")
    found: str = trigger["metadata"]["query"]
    return found


@pytest.mark.parametrize(
    ("name", "counted", "indexes"),
    [
        ("evidence", 3000 + 40, {"evidence_due", "evidence_due_by_site", "evidence_leased"}),
        ("delivery", 50, {"deliveries_wakes", "deliveries_leased", "deliveries_unsettled"}),
    ],
)
def test_a_query_of_keda_counts_what_is_due(backlog: str, name: str, counted: int, indexes: set[str]) -> None:
    """On a real database it returns one number: due and not held back, and in hand. It reads partial indexes, no table."""
    with psycopg.connect(backlog) as conn:
        assert conn.execute(query_of(name)).fetchall() == [(counted,)]
        plan = json.dumps(conn.execute(f"EXPLAIN (FORMAT JSON) {query_of(name)}").fetchone())
    assert set(re.findall(r'"Index Name": "((?:evidence|deliver)\w+)"', plan)) <= indexes, plan  # the partial ones
    table = "evidence" if name == "evidence" else "deliveries"
    scanned = re.findall(r'"Node Type": "Seq Scan"[^{}]*?"Relation Name": "(\w+)"', plan)
    assert table not in scanned, plan
