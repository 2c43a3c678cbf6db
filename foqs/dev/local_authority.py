"""An authority of this machine alone, with the certificates of `foqs dev --tls`. Nothing else is to trust it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from foqs.model.host_certificates import host_uri

LIFE_DAYS = 30
RENEWED_BEFORE_DAYS = 7
# Clients of Python 3.13 and newer verify by RFC 5280 to the letter: this one, and the identifiers of keys.
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
_CA, _CERTIFICATE, _KEY = "ca.pem", "host.cert.pem", "host.key.pem"


class LocalAuthority:
    """The files in one directory. The key of the authority is never written, so it signs once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ca_file, self.cert_file, self.key_file = (directory / name for name in (_CA, _CERTIFICATE, _KEY))

    def files_of(self, host_name: str) -> tuple[Path, Path]:
        """The certificate and the key by which other hosts know this one."""
        return self._directory / f"peer-{host_name}.cert.pem", self._directory / f"peer-{host_name}.key.pem"

    def prepare(self, now: datetime.datetime, cluster: str = "", host_names: Sequence[str] = ()) -> None:
        """Make an authority, the certificate of the ports on loopback, and those by which these hosts know each other.

        Those of before are kept if all are there and last for a week more. Raises OSError if the directory cannot be
        written.
        """
        pairs = [(self.cert_file, self.key_file), *[self.files_of(name) for name in host_names]]
        if self._lasts(now + datetime.timedelta(days=RENEWED_BEFORE_DAYS), pairs):
            return
        self.ca_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_of_ca = ec.generate_private_key(ec.SECP256R1())
        authority = (
            _builder("foqs dev authority", "foqs dev authority", key_of_ca.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .sign(key_of_ca, hashes.SHA256())
        )
        addresses = [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")]
        names: list[list[x509.GeneralName]] = [[x509.DNSName("localhost"), *addresses]]
        names += [[x509.UniformResourceIdentifier(host_uri(cluster, name))] for name in host_names]
        for (cert_file, key_file), of_pair in zip(pairs, names, strict=True):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _certificate(key.public_key(), of_pair, key_of_ca, now)
            private = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            _write(key_file, private)
            _write(cert_file, certificate.public_bytes(serialization.Encoding.PEM))
        _write(self.ca_file, authority.public_bytes(serialization.Encoding.PEM))

    def _lasts(self, until: datetime.datetime, pairs: Sequence[tuple[Path, Path]]) -> bool:
        """True if all files are there, and their certificates are of the authority and last."""
        with suppress(OSError, ValueError):
            authority = x509.load_pem_x509_certificate(self.ca_file.read_bytes())
            found = [x509.load_pem_x509_certificate(cert_file.read_bytes()) for cert_file, _ in pairs]
            for one in found:
                if not _is_signed_by(authority, one):
                    return False
            are_there = all(key_file.exists() for _, key_file in pairs)
            return are_there and all(one.not_valid_after_utc > until for one in (authority, *found))
        return False


def _is_signed_by(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """False for a certificate that an earlier authority left, for a host that was not run since."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificate(
    key: ec.EllipticCurvePublicKey,
    names: list[x509.GeneralName],
    key_of_ca: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> x509.Certificate:
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder("foqs dev", "foqs dev authority", key, now)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key_of_ca.public_key()), critical=False)
        .sign(key_of_ca, hashes.SHA256())
    )


def _builder(name: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime.datetime) -> x509.CertificateBuilder:
    subject, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, issuer))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=LIFE_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole. Nobody else can read it at any time."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    made.rename(path)
