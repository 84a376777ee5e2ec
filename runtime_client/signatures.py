"""Signatures of plans, checked with the public keys that a trainer was told to trust."""

import base64
import binascii
from collections.abc import Mapping, Sequence

from planner.schema import Plan
from planner.schema.plan import SIGNATURE_ALGORITHM, signature_key_id, signed_bytes
from runtime_client.errors import ClientError, UntrustedPlan

PREFIX = f"{SIGNATURE_ALGORITHM}:"
_KEY_BYTES = 32


class TrustedKeys:
    """Public keys by their identity; several while the service changes from one to the next."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Read keys as `shardwright keys new-signing-key` prints them: `ed25519:BASE64`.

        Raises:
            ClientError: one is no such key, or `cryptography` is not installed.
        """
        self._keys: Mapping[str, bytes] = {signature_key_id(raw): raw for raw in map(_raw, keys)}
        if self._keys:
            _require_cryptography()

    def check(self, plan: Plan) -> None:
        """Accept a plan; any, where no key was given.

        Raises:
            UntrustedPlan: it has no signature of these keys, or was changed after it was signed.
        """
        if not self._keys:
            return
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        envelope = plan.envelope
        if envelope.signature is None:
            raise UntrustedPlan(f"plan {envelope.plan_id} is not signed; have the service sign (signing_key_file)")
        algorithm, _, rest = envelope.signature.partition(":")
        key_id, _, text = rest.partition(":")
        raw = self._keys.get(key_id) if f"{algorithm}:" == PREFIX else None
        if raw is None:
            raise UntrustedPlan(
                f"plan {envelope.plan_id} is signed by {algorithm} key {key_id[:40]}, which is none of the "
                f"trusted ones: {', '.join(self._keys)}"
            )
        signed = signed_bytes(plan.body.content_hash(), envelope.lineage, envelope.revision)
        try:
            Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(text, validate=True), signed)
        except (InvalidSignature, binascii.Error, ValueError):
            raise UntrustedPlan(f"the signature of plan {envelope.plan_id} is not one of its content") from None


def _raw(key: str) -> bytes:
    try:
        raw = base64.b64decode(key.removeprefix(PREFIX), validate=True) if key.startswith(PREFIX) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise ClientError(f"{key!r} is no public key; give one as the service's operator has it: {PREFIX}BASE64")
    return raw


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ClientError(
            "checking signatures needs cryptography; install it with: pip install 'shardwright[signatures]'"
        ) from None
