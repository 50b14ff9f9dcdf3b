"""Key files: who may read them, which key signs, how they change under a running process, and how each fault shows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from worker.adapters.key_changes import generate_key, retire_key
from worker.adapters.key_files import read_private, read_trust
from worker.adapters.keys import FileKeys
from worker.domain.errors import Blocked, Invalid, Unavailable
from worker.domain.key import PURPOSES, private_jwk, public_jwk
from worker.domain.signature import new_private_key, verify_detached

DOCUMENT = {"schema": "locseal.approval.v1", "text": "canary"}
NAMES: dict[str, dict[str, list[str]]] = {
    "submission": {"sites": ["www"]},
    "acknowledgement": {"sites": ["www"]},
    "receipt:quality": {"providers": ["reviewer"]},
    "receipt:human": {"providers": ["reviewer"]},
    "receipt:independent": {"providers": ["reviewer"]},
}


@dataclass
class Place:
    """The two directories of one installation, and a clock that the test moves."""

    private: Path
    trust: Path
    seconds: float = 100.0

    def make(self, purpose: str = "approval", **more: Any) -> str:
        names = NAMES.get(purpose, {}) | more
        return generate_key(purpose, private_dir=self.private, trust_dir=self.trust, **names).kid

    def keys(self, **more: Any) -> FileKeys:
        return FileKeys(self.private, self.trust, ticks=lambda: self.seconds, **more)

    def private_file(self, kid: str, purpose: str = "approval") -> Path:
        return self.private / f"{purpose.replace(':', '-')}.{kid}.jwk"

    def trust_file(self, purpose: str = "approval") -> Path:
        return self.trust / f"{purpose.replace(':', '-')}.jwks.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "private", tmp_path / "trust")


def unavailable(call: Callable[[], object]) -> Unavailable:
    """Assert that a call fails retryably, without a word of the document or of a private key."""
    with pytest.raises(Unavailable) as caught:
        call()
    assert caught.value.retryable
    assert "canary" not in str(caught.value)
    return caught.value


# --- making and using -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_made_key_signs_and_verifies(place: Place, purpose: str) -> None:
    """A generated key signs for its purpose at once, and its own trust set verifies it."""
    kid = place.make(purpose)
    keys = place.keys()
    signed = keys.sign(purpose, DOCUMENT)
    assert signed.document == DOCUMENT
    assert verify_detached(keys.trust(purpose), signed.payload(), signed.signature, code="a.b").kid == kid == signed.kid
    for other in PURPOSES:
        if other != purpose:
            assert keys.trust(other).keys == {}
            assert unavailable(lambda other=other: keys.sign(other, DOCUMENT)).code == "keys.signer.missing"


def test_key_files_are_private_and_trust_files_are_not(place: Place) -> None:
    """The private half is 0600 in 0700, the trust set 0644; only the private file holds the secret."""
    kid = place.make("receipt:quality")
    assert place.private.stat().st_mode & 0o777 == 0o700
    assert place.private_file(kid, "receipt:quality").stat().st_mode & 0o777 == 0o600
    assert place.trust_file("receipt:quality").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in place.private.iterdir()] == [f"receipt-quality.{kid}.jwk"]
    assert [path.name for path in place.trust.iterdir()] == ["receipt-quality.jwks.json"]
    jwks = json.loads(place.trust_file("receipt:quality").read_text())
    assert [sorted(jwk) for jwk in jwks["keys"]] == [
        ["alg", "crv", "kid", "kty", "providers", "status", "use", "x"],
    ]


def test_a_key_is_never_made_over_another(place: Place) -> None:
    """A taken kid is refused, and both files stay as they are."""
    place.make(kid="k1")
    before = place.private_file("k1").read_bytes(), place.trust_file().read_bytes()
    with pytest.raises(Blocked) as caught:
        place.make(kid="k1")
    assert caught.value.code == "keys.kid.taken"
    place.trust_file().unlink()
    with pytest.raises(Blocked) as caught:
        place.make(kid="k1")
    assert caught.value.code == "keys.kid.taken"
    assert place.private_file("k1").read_bytes() == before[0]
    assert not place.trust_file().exists()


@pytest.mark.parametrize(
    ("purpose", "more", "code"),
    [
        ("approvals", {}, "keys.purpose.unknown"),
        ("approval", {"kid": "a/b"}, "keys.kid.invalid"),
        ("approval", {"kid": "../../a"}, "keys.kid.invalid"),
        ("approval", {"kid": "x" * 201}, "keys.kid.invalid"),
        ("approval", {"sites": ["www"]}, "keys.trust.invalid"),
        ("submission", {"sites": []}, "keys.trust.invalid"),
        ("receipt:human", {"providers": ["a b"]}, "keys.trust.invalid"),
    ],
)
def test_a_key_that_could_not_be_used_is_not_made(place: Place, purpose: str, more: dict[str, Any], code: str) -> None:
    """A refused key leaves nothing behind."""
    with pytest.raises(Blocked) as caught:
        place.make(purpose, **more)
    assert caught.value.code == code
    assert not place.private.exists()
    assert not place.trust.exists()


def test_a_broken_trust_set_is_not_overwritten(place: Place) -> None:
    """Adding to a trust set that cannot be read is refused; the file and the private directory stay as they are."""
    place.make(kid="k1")
    place.trust_file().write_text("{")
    with pytest.raises(Invalid):
        place.make(kid="k2")
    assert place.trust_file().read_text() == "{"
    assert not place.private_file("k2").exists()


def test_keys_made_at_once_are_all_kept(place: Place) -> None:
    """Twelve threads adding to one trust set lose none."""
    threads = [threading.Thread(target=place.make, kwargs={"kid": f"k{n}"}) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(place.keys().trust("approval").keys) == sorted(f"k{n}" for n in range(12))


# --- which key signs ------------------------------------------------------------------------------------------------


def test_the_first_active_key_signs_and_the_others_verify(place: Place) -> None:
    """A second key waits its turn; `first` makes it the signer; retiring it gives the turn back."""
    first, second = place.make(kid="k1"), place.make(kid="k2")
    keys = place.keys(recheck_seconds=0)
    old = keys.sign("approval", DOCUMENT)
    assert old.kid == first
    third = place.make(kid="k3", first=True)
    new = keys.sign("approval", DOCUMENT)
    assert new.kid == third
    assert list(keys.trust("approval").keys) == [third, first, second]
    retire_key("approval", third, trust_dir=place.trust, status="retired", at=500.0)
    assert keys.sign("approval", DOCUMENT).kid == first
    trust = keys.trust("approval")
    assert verify_detached(trust, new.payload(), new.signature, code="a.b", signed_at=499.0).kid == third
    with pytest.raises(Invalid):
        verify_detached(trust, new.payload(), new.signature, code="a.b", signed_at=500.0)
    retire_key("approval", third, trust_dir=place.trust, status="revoked")
    with pytest.raises(Invalid):
        verify_detached(keys.trust("approval"), new.payload(), new.signature, code="a.b", signed_at=499.0)
    with pytest.raises(Blocked) as caught:
        retire_key("approval", third, trust_dir=place.trust, status="retired", at=500.0)
    assert caught.value.code == "keys.kid.revoked"
    assert keys.trust("approval").keys[third].status == "revoked"


def test_without_an_active_key_nothing_is_signed(place: Place) -> None:
    """A retired or revoked key signs nothing; nor does one whose public half is another's."""
    kid = place.make()
    keys = place.keys(recheck_seconds=0)
    retire_key("approval", kid, trust_dir=place.trust, status="retired", at=500.0)
    assert unavailable(lambda: keys.sign("approval", DOCUMENT)).code == "keys.signer.missing"
    place.trust_file().write_text(json.dumps({"keys": [public_jwk(new_private_key(), kid)]}))
    assert unavailable(lambda: keys.sign("approval", DOCUMENT)).code == "keys.signer.missing"


@pytest.mark.parametrize(
    ("purpose", "kid", "code"),
    [
        ("approvals", "k1", "keys.purpose.unknown"),
        ("publication", "k1", "keys.trust.missing"),
        ("approval", "k2", "keys.kid.unknown"),
    ],
)
def test_only_a_known_key_is_retired(place: Place, purpose: str, kid: str, code: str) -> None:
    """An unknown purpose, set or key is refused and nothing changes."""
    place.make(kid="k1")
    before = place.trust_file().read_bytes()
    with pytest.raises(Blocked) as caught:
        retire_key(purpose, kid, trust_dir=place.trust, status="revoked")
    assert caught.value.code == code
    assert place.trust_file().read_bytes() == before
    assert len(list(place.trust.iterdir())) == 1


# --- private files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601, 0o644, 0o666, 0o777])
def test_a_private_file_open_to_others_is_refused(place: Place, mode: int) -> None:
    """Any permission of group or others stops the purpose, and only this purpose, until it is mended."""
    kid = place.make()
    place.make("publication")
    file = place.private_file(kid)
    file.chmod(mode)
    keys = place.keys(recheck_seconds=0)
    refusal = unavailable(lambda: keys.sign("approval", DOCUMENT))
    assert refusal.code == "keys.file.permissions"
    assert str(file) in refusal.message
    assert "chmod 600" in refusal.message
    keys.sign("publication", DOCUMENT)
    file.chmod(0o600)
    assert keys.sign("approval", DOCUMENT).kid == kid


def test_a_refused_file_is_not_passed_over_for_another_key(place: Place) -> None:
    """Another good key of the purpose does not hide that one is exposed."""
    place.make(kid="k1")
    place.make(kid="k2")
    place.private_file("k1").chmod(0o644)
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.permissions"


def test_a_symlink_is_refused(place: Place) -> None:
    """A link to a perfectly good private file is refused."""
    kid = place.make()
    file = place.private_file(kid)
    file.rename(place.private.parent / "elsewhere")
    file.symlink_to(place.private.parent / "elsewhere")
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.symlink"


def test_a_file_of_another_user_is_refused(place: Place) -> None:
    """A private file that somebody else owns is refused."""
    if os.geteuid() != 0:
        missing("root", "only root can give a file away")
    kid = place.make()
    os.chown(place.private_file(kid), 65534, -1)
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.owner"


def test_a_pipe_or_directory_is_refused_and_does_not_hang(place: Place) -> None:
    """What is no regular file is refused at once."""
    kid = place.make()
    file = place.private_file(kid)
    file.unlink()
    os.mkfifo(file, 0o600)
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.invalid"
    file.unlink()
    file.mkdir(0o700)
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.invalid"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"kty":"OKP"}', "[" * 5000, "x" * 100_000, '{"a":1,"a":1}', b"\xff"],
    ids=lambda content: repr(content[:8]),
)
def test_a_broken_private_file_is_refused_without_its_content(place: Place, content: str | bytes) -> None:
    """Whatever stands in the file, the refusal is stable and says only where."""
    kid = place.make()
    file = place.private_file(kid)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refusal = unavailable(lambda: place.keys().sign("approval", DOCUMENT))
    assert refusal.code == "keys.file.invalid"
    assert str(file) in refusal.message


def test_a_private_file_under_another_name_is_refused(place: Place) -> None:
    """The kid inside must be the one in the name."""
    kid = place.make()
    place.private_file(kid).rename(place.private_file("other"))
    assert unavailable(lambda: place.keys().sign("approval", DOCUMENT)).code == "keys.file.invalid"


def test_a_private_key_serves_the_purpose_of_its_name_alone(place: Place) -> None:
    """A copy under another purpose's name signs nothing, since that purpose does not trust it."""
    kid = place.make()
    place.make("publication", kid="own")
    copy = place.private_file(kid, "publication")
    copy.touch(0o600)
    copy.write_bytes(place.private_file(kid).read_bytes())
    assert place.keys().sign("publication", DOCUMENT).kid == "own"


def test_foreign_files_are_found_but_stop_nothing(place: Place) -> None:
    """A README or an editor's backup in either directory is a finding of no purpose; dot files are passed over."""
    kid = place.make()
    for directory in (place.private, place.trust):
        (directory / "README").write_text("x")
        (directory / ".hidden").write_text("x")
    (place.private / "approval.k9.jwk~").write_text("x")
    assert place.keys().sign("approval", DOCUMENT).kid == kid
    found = [*read_private(place.private).findings, *read_trust(place.trust).findings]
    assert [(one.code, one.purpose, Path(one.file).name) for one in found] == [
        ("keys.file.unexpected", None, "README"),
        ("keys.file.unexpected", None, "approval.k9.jwk~"),
        ("keys.file.unexpected", None, "README"),
    ]


# --- trust files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys":{}}', '{"keys":[{"kid":"a"}]}', "[" * 5000])
def test_a_broken_trust_set_stops_its_purpose_until_mended(place: Place, content: str) -> None:
    """While it is broken nothing verifies or signs for it, retryably; others go on; a good file heals it."""
    kid = place.make()
    place.make("publication")
    good = place.trust_file().read_text()
    keys = place.keys(recheck_seconds=0)
    assert keys.sign("approval", DOCUMENT).kid == kid
    place.trust_file().write_text(content)
    for call in (lambda: keys.trust("approval"), lambda: keys.sign("approval", DOCUMENT)):
        refusal = unavailable(call)
        assert refusal.code == "keys.trust.invalid"
        assert str(place.trust_file()) in refusal.message
    keys.sign("publication", DOCUMENT)
    place.trust_file().write_text(good)
    assert keys.sign("approval", DOCUMENT).kid == kid


def test_a_trust_set_that_everybody_may_write_is_refused(place: Place) -> None:
    """Who can write it decides what we trust."""
    place.make()
    place.trust_file().chmod(0o646)
    assert unavailable(lambda: place.keys().trust("approval")).code == "keys.trust.permissions"


def test_a_linked_trust_set_is_followed(place: Place) -> None:
    """Mounted configuration consists of links, and trust is public."""
    kid = place.make()
    place.trust_file().rename(place.trust.parent / "mounted")
    place.trust_file().symlink_to(place.trust.parent / "mounted")
    assert place.keys().sign("approval", DOCUMENT).kid == kid


def test_one_public_key_in_two_purposes_stops_both(place: Place) -> None:
    """Both purposes of the overlap fail closed with its stable code; a third goes on."""
    kid = place.make()
    place.make("publication")
    place.make("evidence")
    shared = json.loads(place.trust_file().read_text())["keys"]
    jwks = json.loads(place.trust_file("publication").read_text())
    place.trust_file("publication").write_text(json.dumps({"keys": jwks["keys"] + shared}))
    keys = place.keys()
    for purpose in ("approval", "publication"):
        assert unavailable(lambda purpose=purpose: keys.trust(purpose)).code == "keys.trust.overlap"
        assert unavailable(lambda purpose=purpose: keys.sign(purpose, DOCUMENT)).code == "keys.trust.overlap"
    keys.sign("evidence", DOCUMENT)
    assert kid in {jwk["kid"] for jwk in shared}


def test_missing_trust_is_a_fault_of_ours_and_not_an_empty_set(place: Place) -> None:
    """Without its directory, or with an empty one, no submission may be turned away for an unknown key."""
    for make in (lambda: None, place.trust.mkdir):
        make()
        assert unavailable(lambda: place.keys().trust("submission")).code == "keys.trust.missing"


def test_a_trust_set_that_goes_away_is_missed(place: Place) -> None:
    """A purpose that never had a file is empty; one whose file vanished is a fault until it is back."""
    place.make()
    place.make("publication")
    keys = place.keys(recheck_seconds=0)
    assert keys.trust("submission").keys == {}
    text = place.trust_file().read_text()
    place.trust_file().unlink()
    assert unavailable(lambda: keys.trust("approval")).code == "keys.trust.missing"
    place.trust_file().write_text(text)
    assert len(keys.trust("approval").keys) == 1


def test_an_unknown_purpose_is_refused(place: Place) -> None:
    """A word that is no purpose is a fault of the caller."""
    place.make()
    with pytest.raises(Blocked) as caught:
        place.keys().trust("approvals")
    assert (caught.value.code, caught.value.retryable) == ("keys.purpose.unknown", False)


# --- following changes ----------------------------------------------------------------------------------------------


def test_changes_are_seen_within_a_second_and_looked_for_once_a_second(place: Place) -> None:
    """Within the second the old answer stands; after it the new key verifies and signs."""
    first = place.make(kid="k1")
    keys = place.keys()
    assert keys.sign("approval", DOCUMENT).kid == first
    second = place.make(kid="k2", first=True)
    place.seconds += 0.9
    assert keys.sign("approval", DOCUMENT).kid == first
    place.seconds += 0.2
    assert keys.sign("approval", DOCUMENT).kid == second


def test_unchanged_files_are_not_read_again(place: Place) -> None:
    """Files that did not change keep their objects, so no key is parsed twice; fresh ones are read once more."""
    place.make()
    settled = place.keys(recheck_seconds=0, settle_seconds=0)
    assert settled.trust("approval") is settled.trust("approval")
    fresh = place.keys(recheck_seconds=0)
    assert fresh.trust("approval") is not fresh.trust("approval")
    place.make(kid="k2")
    assert "k2" in settled.trust("approval").keys


def test_a_rewrite_in_place_within_the_same_tick_is_seen(place: Place) -> None:
    """Same name, inode, size and times: a fresh file is read again all the same."""
    kid = place.make(kid="k1")
    keys = place.keys(recheck_seconds=0)
    assert keys.trust("approval").keys[kid].status == "active"
    file = place.trust_file()
    times = file.stat()
    text = file.read_text()
    changed = text.replace('"status":"active"', '"status":"revoke"').replace("revoke", "bricks")
    assert len(changed) == len(text)
    file.write_text(changed)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert unavailable(lambda: keys.trust("approval")).code == "keys.trust.invalid"


def test_many_threads_share_one_holder(place: Place) -> None:
    """While the signer changes again and again, every thread gets a signature that verifies."""
    place.make(kid="k0")
    keys = place.keys(recheck_seconds=0)
    faults: list[BaseException] = []
    stop = threading.Event()

    def use() -> None:
        try:
            while not stop.is_set():
                signed = keys.sign("approval", DOCUMENT)
                verify_detached(keys.trust("approval"), signed.payload(), signed.signature, code="a.b")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 15):
        place.make(kid=f"k{number}", first=True)
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert keys.sign("approval", DOCUMENT).kid == "k14"


# --- a signer from outside ------------------------------------------------------------------------------------------


class Kms:
    """A signer that is no file."""

    def __init__(self, kid: str, answer: Callable[[bytes], bytes]) -> None:
        self.kid = kid
        self.answer = answer
        self.asked: list[bytes] = []

    def sign(self, signing_input: bytes) -> bytes:
        self.asked.append(signing_input)
        return self.answer(signing_input)


@pytest.fixture
def kms_key(place: Place) -> Any:
    key = new_private_key()
    place.trust.mkdir()
    place.trust_file().write_text(json.dumps({"keys": [public_jwk(key, "kms-1")]}))
    return key


def test_a_kms_takes_the_place_of_a_file(place: Place, kms_key: Any) -> None:
    """It is asked once, for the whole signing input, and its key needs no private file; a broken one does not matter."""
    kms = Kms("kms-1", kms_key.sign)
    place.private.mkdir(0o700)
    (place.private / "approval.x.jwk").write_text("{")
    signed = place.keys(signers={"approval": kms}).sign("approval", DOCUMENT)
    assert signed.kid == "kms-1"
    assert len(kms.asked) == 1
    assert kms.asked[0].split(b".")[0].decode() == signed.signature.split(".")[0]


def test_a_failing_kms_is_retryable_and_quotes_nothing(place: Place, kms_key: Any) -> None:
    """Whatever it raises becomes one stable retryable failure."""

    def fail(signing_input: bytes) -> bytes:
        raise RuntimeError(f"canary {signing_input!r}")

    refusal = unavailable(lambda: place.keys(signers={"approval": Kms("kms-1", fail)}).sign("approval", DOCUMENT))
    assert refusal.code == "keys.signer.failed"
    assert refusal.__suppress_context__


@pytest.mark.parametrize("kid", ["kms-1", "kms-2"])
def test_what_a_kms_made_is_verified_at_once(place: Place, kms_key: Any, kid: str) -> None:
    """A signature of another key, or under a name that is not trusted, never leaves the holder."""
    wrong = Kms(kid, new_private_key().sign)
    refusal = unavailable(lambda: place.keys(signers={"approval": wrong}).sign("approval", DOCUMENT))
    assert refusal.code == "keys.signature.unverified"
    short = Kms("kms-1", lambda _: b"")
    refusal = unavailable(lambda: place.keys(signers={"approval": short}).sign("approval", DOCUMENT))
    assert refusal.code == "keys.signature.unverified"


def test_no_private_key_is_ever_shown(place: Place) -> None:
    """Neither the holder nor its signer writes a private key into its representation."""
    kid = place.make()
    keys = place.keys()
    keys.sign("approval", DOCUMENT)
    secret = json.loads(place.private_file(kid).read_text())["d"]
    assert secret not in repr(keys)
    assert secret not in repr(keys._snapshot)
    assert private_jwk(new_private_key(), "x")["d"] not in repr(keys._snapshot)
