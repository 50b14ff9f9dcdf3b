"""What we ship and what it stands on: bill of materials, the image's part of the lock, advisories, the Dockerfile."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from config.deploy.lock import BUILD, bill, project, reachable, read_lock, runtime_roots

ROOT = Path(__file__).parents[2]
LOCK = read_lock((ROOT / "requirements.lock").read_text())
SICK_VERSION = "1.2.3"


def test_the_bill_of_materials() -> None:
    """Valid CycloneDX 1.6, with each package of the lock, its hashes, and whether it is in the image; always the same."""
    made = bill(LOCK, project())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made)) is None
    assert {one["name"] for one in made["components"]} == {pin.name for pin in LOCK}
    assert all(one["externalReferences"][0]["hashes"] for one in made["components"])
    scopes = {one["name"]: one["scope"] for one in made["components"]}
    assert (scopes["celery"], scopes["kombu"], scopes["cryptography"]) == ("required",) * 3
    assert (scopes["pytest"], scopes["ruff"], scopes["pip-audit"]) == ("excluded",) * 3
    text = (ROOT / "requirements.lock").read_text()
    assert len(LOCK) == len(re.findall(r"^[A-Za-z0-9._-]+(?:\[.*\])?==", text, re.MULTILINE))
    assert made == bill(read_lock(text), project())


def test_the_image_has_all_it_needs_and_no_tool_of_ours() -> None:
    """Whatever a package of the image's lock asks for is in it; test tools are not; each pin keeps its hashes."""
    pins = reachable(LOCK, runtime_roots(project()))
    image = {pin.name for pin in pins}
    asked = {Requirement(one).name.lower(): Requirement(one).extras for one in project()["dependencies"]}
    for name in image:
        try:
            found = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        for one in map(Requirement, found):
            extras = {"", *asked.get(name, ())}
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                assert re.sub(r"[-_.]+", "-", one.name).lower() in image, f"{name} needs {one.name}"
    assert not {"pytest", "hypothesis", "ruff", "mypy", "kubernetes-validate", "pip-audit"} & image
    assert all("--hash=sha256:" in pin.text for pin in pins)
    assert set(BUILD) <= {pin.name for pin in reachable(LOCK, BUILD)}


def test_a_pin_without_a_hash_is_refused() -> None:
    """Such a lock would let anything in under that name."""
    with pytest.raises(ValueError, match="celery has no hash"):
        read_lock("celery==5.7.0\n    # via locseal (pyproject.toml)\n")


def test_the_image_runs_as_an_ordinary_user() -> None:
    """The image's user is a number, so that runAsNonRoot can be checked; no secret is built in; packages are pinned."""
    text = (ROOT / "config" / "deploy" / "Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert text.count("--require-hashes") == text.count("pip install") - 1  # all but our own wheel
    assert not re.search(r"(?i)(password|token|secret)\s*=", text)


class _Advisories(BaseHTTPRequestHandler):
    """An advisory service that knows one sick version of one package."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_sick = asked["version"] == SICK_VERSION
        sick = {
            "id": "GHSA-test",
            "aliases": [],
            "summary": "",
            "affected": [
                {
                    "package": {"name": asked["package"]["name"], "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.2.4"}]}],
                }
            ],
        }
        body = json.dumps({"vulns": [sick]} if is_sick else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def advisories() -> Iterator[str]:
    """The address of that service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Advisories)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    thread.join()
    server.server_close()


def audit(url: str, version: str, place: Path, *options: str) -> tuple[int, str]:
    """Return the exit code of the audit of a lock with one package, and what it says."""
    lock = place / "requirements.lock"
    lock.write_text(f"some-library=={version} \\\n    --hash=sha256:{'0' * 64}\n")
    command = [sys.executable, ROOT / "config" / "deploy" / "audit_dependencies.py", "--lock", lock, "--osv-url", url]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout


def test_a_vulnerable_package_fails_the_check(advisories: str, tmp_path: Path) -> None:
    """It is named with the version that mends it, tolerant or not; without one all is well."""
    assert audit(advisories, "2.0", tmp_path) == (0, "audit-deps: 1 packages: 0 vulnerable, 0 not audited\n")
    code, said = audit(advisories, SICK_VERSION, tmp_path, "--tolerant")
    assert code == 1
    assert "VULNERABLE: some-library 1.2.3: GHSA-test (fixed in: 1.2.4)" in said


def test_nobody_to_ask_is_never_a_pass(tmp_path: Path) -> None:
    """Without a service the audit fails; where that is tolerated it says in plain words that nothing was audited."""
    nobody = "http://127.0.0.1:1/v1/query"
    assert audit(nobody, "2.0", tmp_path)[0] == 3
    code, said = audit(nobody, "2.0", tmp_path, "--tolerant")
    assert (code, said.split(":")[1].strip()) == (0, "NOT AUDITED")
