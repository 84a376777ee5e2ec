"""What every document of the wire contract shares: strict fields, canonical bytes, one identity."""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.schema.errors import InvalidDocument

MAX_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exact (RFC 8785, section 3.2.2.3)."""

Count = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)]
Bytes = Count
"""A size in bytes."""
Nanoseconds = Count
"""A duration; integers everywhere, so that simulator and solver can agree exactly."""
MAX_NAME = 200
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
ModulePath = Annotated[str, Field(max_length=500)]
"""Dotted path of a module in its root; the empty string is the root itself."""
Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class DType(StrEnum):
    """Element types, by their torch names without the prefix."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE_BYTES[self]


_ITEMSIZE_BYTES = {
    DType.FLOAT64: 8,
    DType.FLOAT32: 4,
    DType.BFLOAT16: 2,
    DType.FLOAT16: 2,
    DType.FLOAT8_E4M3FN: 1,
    DType.FLOAT8_E5M2: 1,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.BOOL: 1,
}


class Part(BaseModel):
    """A frozen piece of a document; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Document(Part):
    """A part that stands alone: it has a kind, canonical bytes and an identity.

    Canonical bytes are RFC 8785 JSON of the fields that differ from their defaults, so that a field added
    later with a default leaves every earlier identity as it was.
    """

    kind: ClassVar[str]

    def canonical_bytes(self) -> bytes:
        """Canonical JSON: the same content gives the same bytes on every platform."""
        return rfc8785.dumps(self.model_dump(mode="json", exclude_defaults=True))

    def content_hash(self) -> str:
        """`sha256:...` over the kind of the document and its canonical bytes."""
        digest = hashlib.sha256(f"shardwright/{self.kind}\n".encode())
        digest.update(self.canonical_bytes())
        return f"sha256:{digest.hexdigest()}"

    def to_json(self) -> str:
        """Readable JSON without the fields that equal their defaults."""
        return self.model_dump_json(exclude_defaults=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "input") -> Self:
        """Read a document.

        Raises:
            InvalidDocument: the text is not JSON or does not match the contract; each problem has its path.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidDocument.from_pydantic(error, kind=cls.kind, source=source) from None

    @classmethod
    def from_object(cls, value: Any, *, source: str = "input") -> Self:  # noqa: ANN401 - JSON of any shape
        """Read a document from already parsed JSON; errors as in `from_json`."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InvalidDocument.from_pydantic(error, kind=cls.kind, source=source) from None
