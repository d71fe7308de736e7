"""parity: the candidate answers as the original does, at the worst element of every output, on every probe. NaN is failure."""

from __future__ import annotations

from tauten.measure.compare import Difference, scale_of, weight, worst_of
from tauten.spec.errors import EngineFailed
from tauten.spec.judging import Probe, Subject
from tauten.spec.verdict import Status, Verdict

NAME = "parity"


class _OriginalFailed(Exception):
    """Not an error of ours: there is nothing to compare with on this probe."""

    def __init__(self, probe: Probe, error: EngineFailed) -> None:
        super().__init__(f"the original itself fails on probe '{probe.name}': {error.message}")
        self.probe = probe


def judge(subject: Subject) -> Verdict:
    """Compares with the reference runner. Skipped where there is no original to compare with."""
    if subject.reference is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="there is no original to compare with")
    try:
        found = [(probe, _differences(subject, probe)) for probe in subject.probes]
    except _OriginalFailed as failed:
        return Verdict(
            name=NAME,
            status=Status.BROKEN,
            message=str(failed),
            fix="bound the axes by what the original itself can run, or mend it",
            evidence={"probe": failed.probe.name},
        )
    per_output: dict[str, tuple[Difference, Probe]] = {}
    for probe, differences in found:
        for name, difference in differences.items():
            if name not in per_output or weight(difference, probe) > weight(*per_output[name]):
                per_output[name] = (difference, probe)
    worst, probe = max(per_output.values(), key=lambda pair: weight(*pair))
    broken = [p for p, differences in found if not all(d.held for d in differences.values())]
    text, fix = _told(subject, worst, probe, broken)
    return Verdict(
        name=NAME,
        status=Status.HELD if worst.held else Status.BROKEN,
        measured=worst.measured,
        limit=worst.limit,
        unit="max_abs",
        samples=len(subject.probes),
        message=text,
        fix=fix,
        evidence={
            "outputs": {name: d.as_evidence(probe=p.name) for name, (d, p) in per_output.items()},
            "broken_probes": [p.name for p in broken],
        },
    )


def _differences(subject: Subject, probe: Probe) -> dict[str, Difference]:
    assert subject.reference is not None
    scale = None if subject.relative_to_scale else scale_of(probe)
    try:
        want = subject.reference(probe.inputs)
    except EngineFailed as error:
        raise _OriginalFailed(probe, error) from error
    got = subject.delivered(probe.inputs)
    return worst_of(got, want, subject.parity, subject.contract.outputs, scale=scale)


def _told(subject: Subject, worst: Difference, probe: Probe, broken: list[Probe]) -> tuple[str, str]:
    """The message and the fix, as far as the pattern of what is broken tells the cause."""
    if worst.held:
        return f"every output agrees with the original on {len(subject.probes)} probes", ""
    text = (
        f"{worst.told()} on probe '{probe.name}', allowed is {worst.limit:.3g} ({len(broken)} of {len(subject.probes)} probes)"
    )
    if _moody(subject, probe):
        return (f"{text}; the original differs from itself too: something random is live in it",
                "call eval() on every layer; F.dropout needs training=self.training, since its default is True")  # fmt: skip
    if (where := _only_at(subject, broken)) is not None:
        axis, size = where
        return (f"{text}; it differs only where {axis} = {size}: the code takes another way at that size",
                f"do not branch on the size of {axis!r} in forward, or leave that size out: axes.{axis}")  # fmt: skip
    if len(broken) < len(subject.probes) and all(p.kind.startswith("mask") for p in broken):
        return text, "guard against rows that are masked entirely (divide by max(count, 1)), and mask with a finite number"
    if subject.relative_to_scale:
        return text, "use another precision scheme: this one moves the answers further than it declares"
    return text, "try the other exporter, or compare layer by layer to find the operator; a wider tolerances.parity hides it"


def _moody(subject: Subject, probe: Probe) -> bool:
    """Whether the original answers this probe otherwise when it is asked again."""
    if subject.reference is None or subject.reference_again is None:
        return False
    first, second = subject.reference(probe.inputs), subject.reference_again(probe.inputs)
    again = worst_of(
        second, first, subject.contract.tolerances.batch, subject.contract.outputs, scale=scale_of(probe), nan_agrees=True
    )
    return not all(d.held for d in again.values())


def _only_at(subject: Subject, broken: list[Probe]) -> tuple[str, int] | None:
    """The axis and the one size at which every broken probe is, and no other."""
    for axis in dict.fromkeys(a for p in subject.probes for a in p.sizes):
        sizes = {p.sizes.get(axis) for p in broken}
        at = [p for p in subject.probes if p.sizes.get(axis) in sizes]
        size = next(iter(sizes), None)
        if len(sizes) == 1 and size is not None and len(at) == len(broken) and len(at) < len(subject.probes):
            return axis, size
    return None
