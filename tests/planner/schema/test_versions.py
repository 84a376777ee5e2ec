"""Specifiers of PEP 440 against its reference implementation."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import ValidationError

from planner.schema import InvalidDocument, PlanBody, Requirements
from planner.schema.versions import release_of, satisfies

INSTALLED = ["2.9", "2.11.0", "2.13", "2.13.0+cu128", "2.13.1.post2", "2.14.0", "1!2.0", "3.0"]
OPERATORS = ["==", "!=", "<=", ">=", "<", ">", "~=", "==="]
WANTED = ["2", "2.13", "2.13.0", "v2.13", "2.13.1", "2.13rc1", "2.14.dev3", "2.13.1.post1", "2.13.1-2", "1!2.0"]
OTHERS = ["2.13.0+cu128", "2.13.0+CU-128", "2.13.*", "2.*", "1!2.*", "2.13.1a.post.dev", "0"]
NOT_SPECIFIERS = [
    "banana",
    "2.13",
    ">=",
    ">=2.*",
    ">=two",
    "=>2.11",
    "~=2",
    "==2.13.*.*",
    ">=2.11;",
    "<2.0+cpu",
    "== =2",
]


def is_valid(text: str) -> bool:
    try:
        satisfies("2.13.0", text)
    except ValueError:
        return False
    return True


def is_valid_to_packaging(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


@pytest.mark.parametrize(("operator", "wanted"), list(product(OPERATORS, WANTED + OTHERS)))
def test_every_operator_agrees_with_packaging(operator: str, wanted: str) -> None:
    text = operator + wanted
    assert is_valid(text) == is_valid_to_packaging(text)
    if is_valid(text):
        ours = [satisfies(version, text) for version in INSTALLED]
        assert ours == [SpecifierSet(text).contains(version, prereleases=True) for version in INSTALLED]


@given(st.text(alphabet="0123.v!*+-_,;)=<>~ abcdeprostv", max_size=14))
def test_what_is_accepted_is_what_packaging_accepts(text: str) -> None:
    assert is_valid(text) == is_valid_to_packaging(text)


@given(st.lists(st.sampled_from([f"{o}{w}" for o in OPERATORS for w in WANTED]), max_size=4))
def test_all_clauses_must_hold_and_all_must_be_valid(clauses: list[str]) -> None:
    text = ", ".join(clauses)
    assert is_valid(text) == all(map(is_valid, clauses))
    if is_valid(text):
        assert satisfies("2.13.0", text) == all(satisfies("2.13.0", clause) for clause in clauses)


def test_a_false_clause_hides_no_invalid_one() -> None:
    with pytest.raises(ValueError, match="'banana' is not a version specifier"):
        satisfies("2.13.0", ">=99,banana")


@pytest.mark.parametrize("text", NOT_SPECIFIERS)
def test_a_plan_that_asks_for_no_specifier_is_refused_with_its_path(text: str) -> None:
    with pytest.raises(ValidationError, match="not a version specifier"):
        Requirements(torch=text)
    with pytest.raises(InvalidDocument) as refused:
        PlanBody.from_object({"requires": {"torch": text}})
    (message,) = [message for path, message in refused.value.problems if path == "requires.torch"]
    assert "write it like '>=2.11'" in message


def test_nightly_builds_count_as_the_release_they_lead_to() -> None:
    assert satisfies("2.14.0a0+git123", ">=2.14")
    assert satisfies("2.14.0.dev20260301+cpu", ">=2.14,<2.15")
    assert not satisfies("2.14.0rc2", "<2.14")


def test_release_numbers() -> None:
    assert release_of("2.13.0a0+git123") == (2, 13, 0)
    with pytest.raises(ValueError, match="is not a version"):
        release_of("latest")
