"""One rank of four that talk to nobody: loading files needs no communication."""

from tests.runtime_client.apply.conftest import world

__all__ = ["world"]
