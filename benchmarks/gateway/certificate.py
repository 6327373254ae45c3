"""A certificate for 127.0.0.1, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key as PEM files in the folder."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    line += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(line, capture_output=True, check=True)
    return cert, key
