"""Atoms from the command line."""

from api.cli.options import ATOM_FORMS
from planner.catalog import atom
from planner.layout.atoms import DeclaredAtom, RowRange
from planner.schema import Atom, AtomRule, ElementAtom, FlatAtom, InvalidDocument, RowsAtom, TileAtom, WholeAtom


def parse_atom(text: str) -> DeclaredAtom:
    """A pattern and its atom from `GLOB=ATOM`.

    Raises:
        InvalidDocument: it has another form.
        UnknownName: there is no such atom.
    """
    pattern, separator, words = (part.strip() for part in text.rpartition("="))
    if not separator or not pattern:
        raise InvalidDocument(f"--atom {text!r} is not GLOB=ATOM; atoms are {ATOM_FORMS}, rows:16-128")
    return DeclaredAtom(pattern=pattern, atom=_atom(words, text))


def _atom(words: str, text: str) -> Atom | RowRange:
    kind, has_number, number = words.partition(":")
    match kind:
        case "element" if not has_number:
            return ElementAtom()
        case "whole" if not has_number:
            return WholeAtom()
        case "flat":
            return FlatAtom(num_elements=positive(number, f"--atom {text!r}:"))
        case "rows" if "-" in number:
            least, most = (positive(part, f"--atom {text!r}:") for part in number.split("-", 1))
            return RowRange(least_rows=min(least, most), most_rows=max(least, most))
        case "rows":
            return RowsAtom(num_rows=positive(number, f"--atom {text!r}:"))
        case "tile":
            rows, _, columns = number.partition("x")
            return TileAtom(
                num_rows=positive(rows, f"--atom {text!r}:"), num_columns=positive(columns, f"--atom {text!r}:")
            )
        case _:
            return atom(words)


def parse_atom_rule(text: str) -> AtomRule:
    """The same for a request, which says how many rows.

    Raises:
        InvalidDocument: it has another form.
        UnknownName: there is no such atom.
    """
    declared = parse_atom(text)
    if isinstance(declared.atom, RowRange):
        raise InvalidDocument(f"--atom {text!r}: give one number of rows; `shardwright layout` chooses in a range")
    return AtomRule(parameters=declared.pattern, atom=declared.atom)


def positive(text: str, where: str, *, most: int = 2**31) -> int:
    """A number from 1 to `most`.

    Raises:
        InvalidDocument: the text is none; `where` says of which option.
    """
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12 or not 0 < int(digits) <= most:
        raise InvalidDocument(f"{where} {digits!r} is not a number from 1 to {most}")
    return int(digits)
