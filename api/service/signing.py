"""Plans are signed with the operator's Ed25519 key as they are handed out; clients know the public one."""

import base64
import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from planner.schema.errors import ShardwrightError
from planner.schema.plan import SIGNATURE_ALGORITHM, signature_key_id, signed_bytes

_OTHERS = 0o077


class InvalidSigningKey(ShardwrightError):
    """A file that holds no private Ed25519 key, or that others may read."""

    code = "invalid_signing_key"


class Signer:
    """Holds the private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        raw = _raw_public(key)
        self.key_id = signature_key_id(raw)
        self.public_key = f"{SIGNATURE_ALGORITHM}:{base64.b64encode(raw).decode()}"

    @classmethod
    def of(cls, file: Path) -> "Signer":
        """Read a key that `create` wrote, or any PKCS 8 PEM file of an Ed25519 key.

        Raises:
            InvalidSigningKey: it cannot be read, holds something else, or others than its owner may read it.
        """
        try:
            mode, text = file.stat().st_mode, file.read_bytes()
        except OSError as error:
            raise InvalidSigningKey(f"{file}: {error.strerror}") from None
        if mode & _OTHERS:
            raise InvalidSigningKey(f"others may read {file}; say: chmod 600 {file}")
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidSigningKey(
                f"{file} holds no private Ed25519 key; make one with: shardwright keys new-signing-key FILE"
            )
        return cls(key)

    @classmethod
    def create(cls, file: Path) -> "Signer":
        """Write a new key, for its owner's eyes only.

        Raises:
            InvalidSigningKey: the file is there already, or cannot be written.
        """
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidSigningKey(f"{file}: {error.strerror}") from None
        with os.fdopen(handle, "wb") as opened:
            opened.write(text)
        return cls(key)

    def sign(self, plan_id: str, lineage: str | None = None, revision: int | None = None) -> str:
        """`ed25519:KEY_ID:BASE64` over what an envelope says about identity and place."""
        signature = self._key.sign(signed_bytes(plan_id, lineage, revision))
        return f"{SIGNATURE_ALGORITHM}:{self.key_id}:{base64.b64encode(signature).decode()}"


def _raw_public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
