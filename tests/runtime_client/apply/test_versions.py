"""Specifiers against the rules of PEP 440, by the reference implementation."""

import pytest
from packaging.specifiers import SpecifierSet

from runtime_client.apply.versions import satisfies

VERSIONS = ["2.9", "2.11.0", "2.11.1", "2.13.0+cu128", "2.13.1", "2.14", "3.0"]
SPECIFIERS = [
    ">=2.11",
    ">=2.11,<2.14",
    ">2.11,!=2.13.1",
    "==2.13.*",
    "!=2.13.*",
    "~=2.11",
    "~=2.11.0",
    "<=2.13",
    "",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("specifier", SPECIFIERS)
def test_agrees_with_packaging(version: str, specifier: str) -> None:
    assert satisfies(version, specifier) == SpecifierSet(specifier).contains(version, prereleases=True)


def test_nightly_builds_count_as_the_release_they_lead_to() -> None:
    assert satisfies("2.14.0a0+git123", ">=2.14")
    assert not satisfies("2.14.0.dev20260301", "<2.14")


@pytest.mark.parametrize(
    ("version", "specifier"), [("dev", ">=2"), ("2.13", "two"), ("2.13", ">=2.*"), ("2.13", "2.13")]
)
def test_what_cannot_be_read_is_refused(version: str, specifier: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        satisfies(version, specifier)
