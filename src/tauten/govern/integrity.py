"""What is served is what was sealed: the server's own digests against the contract and the bundle at hand."""

from __future__ import annotations

from tauten.govern._finding import Finding
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict


def judge(observed: Observed, _: Contract) -> tuple[Verdict, ...]:
    """Compares the digests that both sides have; "bundle" and "contract"."""
    both = [key for key in observed.expected if key in observed.served]
    finding = Finding(name="integrity", unit="digests", key="", limit=None, samples=len(both),
                      evidence={"served": dict(observed.served), "expected": dict(observed.expected)})  # fmt: skip
    odd = [key for key in both if observed.served[key] != observed.expected[key]]
    if odd:
        key = odd[0]
        told = f"the server serves {key} {_short(observed.served[key])}, at hand is {_short(observed.expected[key])}"
        return (finding.says(Status.BROKEN, told, "serve the bundle that was sealed, or verify with its own contract"),)
    if not both:
        return (finding.says(Status.SKIPPED, "the server does not tell what it serves"),)
    return (finding.says(Status.HELD, f"the server serves this {' and this '.join(both)}"),)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
