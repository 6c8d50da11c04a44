"""A certificate authority for the tests, and the certificates that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of treadle's tests")])


class Authority:
    """A certificate authority. Clients have to trust `file`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(NAME, self._key.public_key(), days=1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(certificate))

    def context(self, host: str = "localhost", *, days: int = 1) -> ssl.SSLContext:
        """A server's side of TLS, under that name. With `days` below 0 the certificate has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(x509.Name([]), key.public_key(), days=days)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"{host}.pem"
        file.write_bytes(_private(key) + _pem(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
    until = datetime.now(UTC) + timedelta(days=days)
    builder = x509.CertificateBuilder().issuer_name(NAME).subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(until - timedelta(days=2)).not_valid_after(until)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
