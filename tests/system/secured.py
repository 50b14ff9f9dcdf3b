"""Redis and PostgreSQL as they should stand in production: TLS with a CA of our own, a user for each kind of process."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import os
import secrets
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.system.own_postgres import OwnPostgres
from worker.cli.local_fleet import Child, LocalFleet, free_port, wait_for

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "config" / "deploy"
ROLES = ("owner", "worker", "operator", "pruner", "reader", "producer", "scaler")
USERS = ("worker", "producer", "flower", "scaler")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A CA in a directory: `ca` is its certificate's file; `issue` makes a certificate and its key."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        at_most = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._signed(self._name, self._key, [(at_most, True)])
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(certificate)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1, and for no other name, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        paths = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        paths[0].write_bytes(self._signed(_name(name), key, [(names, False), (uses, False)]))
        paths[1].touch(0o600)
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class SecuredPostgres(OwnPostgres):
    """A server that takes TLS only, with the roles of `roles.sql` and a password for each of them."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        data = self._directory / "data"
        for source, name in zip(authority.issue("postgres"), ("server.crt", "server.key"), strict=True):
            target = data / name
            target.touch(0o600)
            target.write_bytes(source.read_bytes())
            if os.geteuid() == 0:
                os.chown(target, self._as_user["user"], self._as_user["group"])
        (data / "pg_hba.conf").write_text(
            "hostssl all locseal 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        )
        with (data / "postgresql.conf").open("a") as conf:
            conf.write("ssl = on\nmax_connections = 60\n")
        self.ca = authority.ca
        self.passwords = {role: secrets.token_hex(16) for role in ROLES}

    def make_roles(self) -> None:
        """Run roles.sql as an administrator would, and give each role its password."""
        with psycopg.connect(self.admin(), autocommit=True) as conn:
            conn.execute((DEPLOY / "postgres" / "roles.sql").read_bytes())
            for role, password in self.passwords.items():
                conn.execute(f"ALTER ROLE locseal_{role} PASSWORD '{password}'")  # type: ignore[arg-type]

    def admin(self) -> str:
        """Return the address of the superuser."""
        return f"postgresql://locseal@127.0.0.1:{self.port}/postgres?sslmode=verify-full&sslrootcert={self.ca}"

    def address(self, role: str, host: str = "127.0.0.1") -> str:
        """Return the address of a role without its password and without parameters, as settings take it."""
        return f"postgresql+psycopg://locseal_{role}@{host}:{self.port}/postgres"

    def connect(self, role: str) -> psycopg.Connection:
        """Return a connection of a role."""
        return psycopg.connect(
            f"postgresql://locseal_{role}:{self.passwords[role]}@127.0.0.1:{self.port}/postgres"
            f"?sslmode=verify-full&sslrootcert={self.ca}",
            autocommit=True,
        )

    def log_text(self) -> str:
        """Return what the server has logged."""
        return (self._directory / "log").read_text()


@dataclass(kw_only=True)
class SecuredFleet(LocalFleet):
    """A local fleet whose Redis speaks TLS only, asks for certificates and knows the users of `users.acl`."""

    authority: Authority
    passwords: dict[str, str] = field(default_factory=dict)

    def start_broker(self) -> Child:
        """Start Redis and point the settings at it, as the worker's user."""
        home = self.directory / "broker"
        self.broker_port = free_port()
        acl = (DEPLOY / "redis" / "users.acl").read_text()
        for user in USERS:
            self.passwords[user] = secrets.token_hex(16)
            (home / f"{user}_password").write_text(self.passwords[user])
            acl = acl.replace(
                f"#{user.upper()}_SHA256", f"#{hashlib.sha256(self.passwords[user].encode()).hexdigest()}"
            )
        self.passwords["admin"] = secrets.token_hex(16)
        (home / "users.acl").write_text(f"{acl}user admin on >{self.passwords['admin']} ~* &* +@all\n")
        server, client = self.authority.issue("redis"), self.authority.issue("client")
        (home / "redis.conf").write_text(
            f"bind 127.0.0.1\nport 0\ntls-port {self.broker_port}\ntls-cert-file {server[0]}\ntls-key-file {server[1]}\n"
            f"tls-ca-cert-file {self.authority.ca}\ntls-auth-clients yes\naclfile {home / 'users.acl'}\n"
            f'save ""\nappendonly no\nmaxmemory-policy noeviction\nmaxmemory 100mb\ndir {home}\n'
        )
        assert self.broker_program is not None
        child = self.start("broker", [self.broker_program, home / "redis.conf"])
        self.settings |= self.broker_settings("worker") | {
            "BROKER_CA_FILE": str(self.authority.ca),
            "BROKER_CERTIFICATE_FILE": str(client[0]),
            "BROKER_CERTIFICATE_KEY_FILE": str(client[1]),
        }
        wait_for(lambda: "eady to accept connections" in child.log_text(), child, "the broker", 60)
        return child

    def broker_settings(self, user: str, host: str = "127.0.0.1") -> dict[str, str]:
        """Return the settings by which a user of the ACL reaches Redis."""
        return {
            "BROKER_URL": f"rediss://locseal_{user}@{host}:{self.broker_port}/0",
            "BROKER_PASSWORD_FILE": str(self.directory / "broker" / f"{user}_password"),
        }

    def broker_url(self) -> str:
        """Return the broker's URL for the test itself, which may do everything. Holds secrets."""
        tls = {
            "ssl_cert_reqs": "required",
            "ssl_ca_certs": self.settings["BROKER_CA_FILE"],
            "ssl_certfile": self.settings["BROKER_CERTIFICATE_FILE"],
            "ssl_keyfile": self.settings["BROKER_CERTIFICATE_KEY_FILE"],
        }
        options = "&".join(f"{name}={value}" for name, value in tls.items())
        return f"rediss://admin:{self.passwords['admin']}@127.0.0.1:{self.broker_port}/0?{options}"

    def redis_cli(self, user: str, *command: str) -> str:
        """Return what redis-cli prints for a command of a user."""
        name = "admin" if user == "admin" else f"locseal_{user}"
        done = subprocess.run(
            [
                "redis-cli", "--no-auth-warning", "-p", str(self.broker_port), "--tls",
                "--cacert", self.settings["BROKER_CA_FILE"], "--cert", self.settings["BROKER_CERTIFICATE_FILE"],
                "--key", self.settings["BROKER_CERTIFICATE_KEY_FILE"], "--user", name, "--pass", self.passwords[user],
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr
