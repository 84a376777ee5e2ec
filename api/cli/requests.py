"""From options to a request."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from api.cli.documents import load_cluster, load_model, load_profile, read_document
from planner.schema import (
    DType,
    FixedChoice,
    InconsistentRequest,
    InvalidDocument,
    Limits,
    ModelDescription,
    Objective,
    PlanRequest,
    Quantizer,
    QuantizerGroup,
    SearchLimits,
    UnknownName,
    Workload,
)

if TYPE_CHECKING:
    from api.cli.options import RequestOptions

T = TypeVar("T")

_DTYPE_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_UNIT_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def request_of(options: "RequestOptions") -> PlanRequest:
    """The request that the options describe; see `RequestOptions.to_request`."""
    if options.request is not None:
        others = sorted(set(options.given()) - {"request"})
        if others:
            raise InconsistentRequest(
                f"--request holds the whole request already, but {', '.join(map(_spelling, others))} was given; "
                "leave one of them out"
            )
        return read_document(PlanRequest, options.request)
    with refusals_of("request"):
        model = load_model(_required(options.model, "MODEL"))
        return PlanRequest(
            model=model,
            cluster=load_cluster(_required(options.cluster, "CLUSTER")),
            workload=_workload(options, model),
            profile=load_profile(options.profile) if options.profile is not None else None,
            objective=Objective.STEP_TIME if options.objective == "step-time" else Objective.PEAK_MEMORY,
            limits=_limits(options),
            fixed=tuple(parse_choice(text) for text in options.fix or ()),
            search=_search(options),
            robust=options.robust,
            **_alternatives(options.allow or ()),
        )


@contextmanager
def refusals_of(kind: str) -> Iterator[None]:
    """What the contract refuses in options, as an error that the user can mend.

    Raises:
        InvalidDocument: the block made a part of a document with a value that it cannot have.
    """
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise InvalidDocument.from_pydantic(error, kind=kind, source="the command line") from None


def parse_size(text: str, *, option: str = "--budget") -> int:
    """Bytes from `70GiB`, `80 GB` or a plain number.

    Raises:
        InvalidDocument: the text is not a size.
    """
    return _amount(
        text, _UNIT_BYTES, f"{option} {text!r} is not a size; write a number and a unit, e.g. 70GiB or 80GB"
    )


def parse_duration(text: str) -> int:
    """Nanoseconds from `800ms` or `1.2 s`.

    Raises:
        InvalidDocument: the text is not a time.
    """
    return _amount(
        text, _UNIT_NS, f"--step-time {text!r} is not a time; write a number and a unit, e.g. 800ms or 1.2s"
    )


def _amount(text: str, units: Mapping[str, int], refusal: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    amount = float(match[1]) * unit if match and unit else math.inf
    if math.isinf(amount):
        raise InvalidDocument(refusal)
    return int(amount)


def parse_choice(text: str) -> FixedChoice:
    """A fixed choice from `KNOB=VALUE`; the value is true, false, an integer or a word.

    Raises:
        InvalidDocument: there is no `=`.
    """
    knob, separator, value = text.partition("=")
    if not separator or not knob.strip():
        raise InvalidDocument(f"--fix {text!r} lacks a value; write KNOB=VALUE, e.g. mesh.shard=8")
    with refusals_of(f"choice {text!a}"):
        return FixedChoice(knob=knob.strip(), value=parse_value(value.strip()))


_ALTERNATIVES = {
    "micro_batch": "micro_batches",
    "reduce_dtype": "reduce_dtypes",
    "optimizer_implementation": "optimizer_implementations",
}


def _alternatives(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Fields of a request from `KNOB=VALUE,VALUE`."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        knob, _, values = text.partition("=")
        if knob.strip() not in _ALTERNATIVES:
            raise UnknownName("--allow knob", knob.strip(), list(_ALTERNATIVES))
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not words:
            raise InvalidDocument(f"--allow {text!r} lacks values; write KNOB=VALUE,VALUE, e.g. micro_batch=2,4")
        parsed = [parse_dtype(word, option="--allow") if "dtype" in knob else parse_value(word) for word in words]
        found.setdefault(_ALTERNATIVES[knob.strip()], []).extend(parsed)
    return found


def parse_value(text: str) -> bool | int | str:
    """`true` and `false` become booleans, digits an integer, everything else stays a word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?\d{1,40}", text) else text


def parse_dtype(text: str, *, option: str) -> DType | None:
    """An element type by its torch name or its short form; `none` keeps the storage type.

    Raises:
        UnknownName: there is no such type.
    """
    if text.lower() == "none":
        return None
    name = _DTYPE_SHORT.get(text.lower(), text.lower())
    if name not in set(DType):
        raise UnknownName(f"{option} value", text, [*_DTYPE_SHORT, "none", *DType])
    return DType(name)


def parse_quantizer(text: str) -> QuantizerGroup:
    """A group from `NAME` or `GLOB=NAME`.

    Raises:
        UnknownName: there is no such quantizer.
    """
    glob, _, name = (part.strip() for part in text.rpartition("="))
    if name not in set(Quantizer):
        raise UnknownName("--quantizer", name, list(Quantizer))
    return QuantizerGroup(parameters=glob or "*", quantizer=Quantizer(name))


def _workload(options: "RequestOptions", model: ModelDescription) -> Workload:
    from api.cli.optimizers import groups_of

    return Workload.from_object(
        {
            "micro_batch": options.micro_batch,
            "sequence": _required(options.sequence, "--seq"),
            "global_batch": _required(options.global_batch, "--global-batch"),
            "precision": {
                "param_dtype": parse_dtype(options.param_dtype, option="--param-dtype"),
                "reduce_dtype": parse_dtype(options.reduce_dtype, option="--reduce-dtype"),
            },
            "optimizer_groups": groups_of(options.optimizer, options.optimizer_impl, model),
            "torch_version": options.torch_version,
            "atoms": _atoms(options.atom or ()),
            "quantizer_groups": [parse_quantizer(text).model_dump(mode="json") for text in options.quantizer or ()],
            "conditional": options.conditional or (),
            "forward_methods": options.forward_method or (),
        },
        source="the command line",
    )


def _atoms(texts: Iterable[str]) -> list[dict[str, Any]]:
    from api.cli.atoms import parse_atom_rule

    return [parse_atom_rule(text).model_dump(mode="json") for text in texts]


def _limits(options: "RequestOptions") -> Limits:
    with refusals_of("limit"):
        return Limits(
            memory_bytes=parse_size(options.budget) if options.budget is not None else None,
            step_time_ns=parse_duration(options.step_time) if options.step_time is not None else None,
        )


def _search(options: "RequestOptions") -> SearchLimits:
    chosen: dict[str, Any] = {
        "seed": options.seed,
        "gap": options.gap,
        "deterministic_time": options.effort,
        "wall_clock_s": options.time_limit,
    }
    with refusals_of("search limit"):
        return SearchLimits(**{name: value for name, value in chosen.items() if value is not None})


def _required(value: T | None, name: str) -> T:
    if value is None:
        raise InconsistentRequest(
            f"{name} is missing; a request needs MODEL, CLUSTER, --seq and --global-batch (or --request FILE)"
        )
    return value


def _spelling(field: str) -> str:
    if field in ("model", "cluster"):
        return field.upper()
    return "--seq" if field == "sequence" else f"--{field.replace('_', '-')}"
