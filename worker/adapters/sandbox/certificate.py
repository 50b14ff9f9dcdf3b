"""A self-made TLS certificate for the sandbox, so that it can be reached over https from other machines."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS: Final = 365
RENEW_DAYS: Final = 30


def certificate_for(directory: Path, names: Sequence[str]) -> tuple[Path, Path]:
    """Return the files (certificate, private key) for some host names or addresses, making them when needed.

    The certificate is its own issuer: whoever calls the sandbox trusts the certificate file (`LOCSEAL_CA_FILE`). A new
    one is made when the names changed or the old one ends within 30 days.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    if not (certificate.exists() and key.exists() and _fits(certificate.read_bytes(), names)):
        _make(certificate, key, names)
    return certificate, key


def _fits(pem: bytes, names: Sequence[str]) -> bool:
    try:
        found = x509.load_pem_x509_certificate(pem)
        held = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(days=RENEW_DAYS)
    return set(held) == {_name(name) for name in names} and found.not_valid_after_utc > soon


def _make(certificate: Path, key: Path, names: Sequence[str]) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Locseal sandbox")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # for callers whose clock is a little behind
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    private = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key, private, 0o600)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Put a file in the place of an older one; it has its mode from the first moment."""
    waiting = path.with_suffix(".new")
    waiting.unlink(missing_ok=True)
    handle = os.open(waiting, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    waiting.replace(path)
