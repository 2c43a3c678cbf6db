"""Certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# Python 3.13 and newer verify by RFC 5280 to the letter: this one, and the identifiers of keys.
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def write_certificate(directory: Path, host_name: str = "127.0.0.1") -> None:
    """A key and a certificate for an address or a host name that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host_name)])
    now = datetime.datetime.now(datetime.UTC)
    try:
        served: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host_name))
    except ValueError:
        served = x509.DNSName(host_name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([served]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)


class Issued(NamedTuple):
    """The files of a certificate and its key."""

    cert_file: str
    key_file: str


class Authority:
    """An authority with a key of its own. Its files are in a directory of the test."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._numbers = itertools.count(1)
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._subject, self._key, 1.0)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(_SIGNS_CERTIFICATES, critical=True)
        self.ca_file = str(directory / f"{name}.pem")
        Path(self.ca_file).write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        uris: Sequence[str] = (),
        days: float = 3_650.0,
        since_days: float = 1.0,
    ) -> Issued:
        """Make a certificate; a later one of the same name replaces its files."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, days, since_days)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issued = Issued(str(self._directory / f"{name}.cert.pem"), str(self._directory / f"{name}.key.pem"))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(Path(issued.key_file), private)
        _write(Path(issued.cert_file), made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return issued

    def client_context(self, own: Issued | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # As newer versions of Python do.
        if own is not None:
            context.load_cert_chain(*own)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float, since_days: float = 1.0
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(next(self._numbers))
            .not_valid_before(now - datetime.timedelta(days=since_days))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its owner alone."""
    made = path.with_name(f".{path.name}")
    made.write_bytes(content)
    made.chmod(0o600)
    made.rename(path)
