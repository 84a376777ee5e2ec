"""How long a pass over a call takes: measured, interpolated within its block, or a roofline.

[Note: which number counts] The first of these that there is:

1. A measurement of this pass, of this block, at this micro-batch and sequence.
2. The same pass of the same block at other sizes. Work of a transformer block is `c_0 + c_1 B S + c_2 B S^2`
   (parameters, tokens, attention; Korthikanti et al., https://arxiv.org/abs/2205.05198, equation 7, counts FLOPs
   so), and so is its time where each term runs at a rate of its own. The coefficients, none negative, come from the
   measurements by least squares (`planner.costs.fit`); terms that the description's polynomials do not have are
   left out. With two sizes the fit is `c_0 + c_1 R`, with one `c_1 R`, where `R` is the roofline of the pass. What
   the measurements are of the fit counts near them.
3. Another pass of the same block (recomputation, with outputs kept or not, from forward), or the whole block for a
   part of it, at the ratio of their rooflines.
4. The roofline.

1 is measured, 2 and 3 are interpolated, 4 is assumed. Sizes more than `FARTHEST` times off all that were measured
are assumed too, though the value is that of 2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from planner.costs.fit import nonnegative_fit
from planner.schema import CallMeasurement, NumberSource, PlanRequest, Work, block_hash

FARTHEST = 4
"""An interpolation holds up to so many times the largest size measured, and down to the smallest over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Nanoseconds of a pass, where they come from, and by which rule."""

    ns: int
    source: NumberSource
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Where something was measured, or is wanted."""

    micro_batch: int
    sequence: int

    @property
    def tokens(self) -> int:
        """In one forward."""
        return self.micro_batch * self.sequence

    def is_near(self, others: Sequence["Size"]) -> bool:
        """Whether tokens and sequence are within `FARTHEST` of what `others` span."""
        return all(
            min(known) <= FARTHEST * mine and mine <= FARTHEST * max(known)
            for mine, known in (
                (self.tokens, [other.tokens for other in others]),
                (self.sequence, [other.sequence for other in others]),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Durations:
    """Durations of a request's calls; see the module."""

    request: PlanRequest
    works: Mapping[tuple[str, str], tuple[Work, ...]]
    """Work of each region, by kind and pass."""
    roofline: Callable[[str, str, Size], int]
    """Nanoseconds of a pass over a kind at a size."""
    _known: dict[str, list[CallMeasurement]] = field(default_factory=dict)
    _parents: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        calls = self.request.profile.calls if self.request.profile else ()
        hashes = any(call.block is not None for call in calls)
        for kind in self.request.model.kinds:
            block = block_hash(self.request.model, kind) if hashes else None
            known = [call for call in calls if (call.block == block if call.block else call.kind == kind)]
            if known:
                self._known[kind] = known
        for name, described in sorted(self.request.model.kinds.items()):
            for part in described.parts:
                self._parents.setdefault(part.kind, name)

    @property
    def size(self) -> Size:
        """That of the request."""
        workload = self.request.workload
        return Size(micro_batch=workload.micro_batch, sequence=workload.sequence)

    def of(self, kind: str, which: str) -> Duration:
        """Duration of a pass: `forward`, `backward`, `recompute`, or `recompute keeping ...`."""
        assumed_ns = self.roofline(kind, which, self.size)
        found = self._measured(kind, which)
        if found is None and assumed_ns:
            found = self._by_ratio(kind, which, assumed_ns)
        return found or Duration(ns=assumed_ns, source=NumberSource.ASSUMED)

    def _measured(self, kind: str, which: str) -> Duration | None:
        """Rules 1 and 2."""
        times: dict[Size, int] = {}
        for call in self._known.get(kind, ()):
            value: int | None = getattr(call, f"{which}_ns", None)
            if value is not None:
                times[Size(micro_batch=call.micro_batch, sequence=call.sequence)] = value
        if self.size in times:
            return Duration(ns=times[self.size], source=NumberSource.MEASURED)
        fitting = {size: time for size, time in times.items() if time}
        return self._fitted(kind, which, fitting) if fitting else None

    def _fitted(self, kind: str, which: str, times: Mapping[Size, int]) -> Duration | None:
        rows = {size: self._features(kind, which, size, len(times)) for size in (*times, self.size)}
        coefficients = nonnegative_fit(tuple(rows[size] for size in times), tuple(times.values()))
        if coefficients is None:
            return None
        fitted = {size: _value(coefficients, row) for size, row in rows.items()}
        misses = {size: time / fitted[size] for size, time in times.items() if fitted[size]}
        value = fitted[self.size] * _near(misses, self.size)
        is_near = self.size.is_near(list(times))
        sizes = ", ".join(f"{size.micro_batch} x {size.sequence}" for size in times)
        return Duration(
            ns=max(1, round(value)),
            source=NumberSource.INTERPOLATED if is_near else NumberSource.ASSUMED,
            basis=f"{'fit' if is_near else 'far'} from {sizes}",
        )

    def _features(self, kind: str, which: str, size: Size, num_points: int) -> tuple[Fraction, ...]:
        if num_points < 3:
            roofline = Fraction(self.roofline(kind, which, size))
            return (roofline,) if num_points == 1 else (Fraction(1), roofline)
        polynomials = [p for work in self.works[kind, which] for p in (work.flops, work.moved_bytes)]
        terms = {name for p in polynomials for name in ("b", "s", "bs", "ss", "bss") if getattr(p, name)}
        features = [1]
        if terms & {"b", "bs", "s"}:
            features.append(size.sequence if terms & {"b", "bs", "bss"} == set() else size.tokens)
        if terms & {"ss", "bss"}:
            features.append(size.sequence**2 if "bss" not in terms else size.tokens * size.sequence)
        return tuple(map(Fraction, features))

    def _by_ratio(self, kind: str, which: str, assumed_ns: int) -> Duration | None:
        """Rule 3."""
        whole = self._parents.get(kind)
        sources = [(kind, "recompute")] if which.startswith("recompute keeping") else []
        sources += [(kind, "forward")] if which != "forward" else []
        sources += [(whole, which)] if whole is not None and (whole, which) in self.works else []
        for other, other_pass in sources:
            found = self._measured(other, other_pass)
            other_ns = self.roofline(other, other_pass, self.size)
            if found is not None and other_ns:
                is_assumed = found.source is NumberSource.ASSUMED
                return Duration(
                    ns=max(1, round(Fraction(found.ns * assumed_ns, other_ns))),
                    source=NumberSource.ASSUMED if is_assumed else NumberSource.INTERPOLATED,
                    basis=f"share of {other_pass} of {other}",
                )
        return None


def _value(coefficients: Sequence[Fraction], features: Sequence[Fraction]) -> Fraction:
    return sum((c * f for c, f in zip(coefficients, features, strict=True)), Fraction(0))


def _near(misses: Mapping[Size, Fraction], wanted: Size) -> Fraction:
    """What measurements are of the fit near a size that is none of them: their mean, weighted by the inverse square
    of their distance (Shepard, https://doi.org/10.1145/800186.810616).
    """
    if not misses:
        return Fraction(1)
    weights = {known: 1 / _distance_squared(known, wanted) for known in misses}
    return sum((weights[known] * miss for known, miss in misses.items()), Fraction(0)) / sum(weights.values())


def _distance_squared(one: Size, other: Size) -> Fraction:
    """By how much of itself each of micro-batch and sequence has to grow."""
    pairs = ((one.micro_batch, other.micro_batch), (one.sequence, other.sequence))
    return sum(((Fraction(max(pair), min(pair)) - 1) ** 2 for pair in pairs), Fraction(0))
