"""The same over TLS, whose records come in their own pieces and can wait where no poll sees them."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from contextlib import closing
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foqs.core import limits
from foqs.storage.session import connect, run_script
from loadtest.faults.programs import free_port
from tests.support.databases import new_server

pytestmark = pytest.mark.database


def write_certificate(directory: Path) -> None:
    """A key and a certificate for 127.0.0.1 that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    write_certificate(directory)
    port = free_port()
    options = [
        "--skip-networking=0",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--ssl-ca={directory / 'cert.pem'}",
        f"--ssl-cert={directory / 'cert.pem'}",
        f"--ssl-key={directory / 'key.pem'}",
    ]
    with new_server(directory / "server", *options):
        yield f"mysql+pymysql://root@127.0.0.1:{port}/mysql?ssl_ca={directory / 'cert.pem'}"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_script_of_megabytes_both_ways_is_whole(tls_url, run):
    payload = "7a" * limits.MIB
    statements = [f"INSERT INTO t VALUES ({n}, x'{payload}')" for n in range(5)]
    with closing(connect(tls_url)) as session:
        assert isinstance(session._sock, ssl.SSLSocket)
        create = "CREATE TEMPORARY TABLE t (id INT PRIMARY KEY, b MEDIUMBLOB)"
        results = run(run_script(session, [create, *statements, "SELECT id, b FROM t", "SELECT 1"]))
        assert results == [[]] * 6 + [[(n, bytes.fromhex(payload)) for n in range(5)], [(1,)]]
        with session.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM t")
            assert cursor.fetchall() == ((5,),)
