"""lint: a graph that every runtime must read the same way: names assigned once, in order, all there, no dead bytes.

Runtimes differ here: where one refuses a duplicate name, another silently takes the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tauten.spec.graph import Graph, Initializer, Node
from tauten.spec.judging import Subject
from tauten.spec.verdict import Status, Verdict, from_troubles

NAME = "lint"
PROTOBUF_LIMIT = (1 << 31) - 1  # a protobuf message cannot be larger
ALIGNMENTS = tuple(1 << n for n in range(4, 17))  # what writers of external data align to: 16 bytes to 64 KiB
OVERRIDABLE_FROM_IR = 4  # before, every weight had to be listed as an input too, and no runtime let clients set it

Trouble = tuple[str, str]


def judge(subject: Subject) -> Verdict:
    """Every trouble is in the evidence; the message tells the first."""
    graph = subject.graph
    if graph is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="the model has no graph to read")
    troubles = [*_names(graph), *_order(graph), *_weights(graph), *_outputs(graph), *_files(graph)]
    size = sum(graph.files.values())
    evidence = {
        "nodes": len(graph.nodes),
        "unnamed_nodes": sum(not n.name for n in graph.nodes),
        "initializers": len(graph.initializers),
        "bytes": size,
        "domains": dict(Counter(n.domain for n in graph.nodes if n.domain)),
        "producer": graph.producer,
    }
    return from_troubles(
        NAME,
        troubles,
        fine=f"{len(graph.nodes)} nodes, {len(graph.initializers)} weights, {size:,} bytes",
        unit="troubles",
        samples=len(graph.nodes) + len(graph.initializers),
        evidence=evidence,
    )


def _top(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.depth == 0]


def _names(graph: Graph) -> Iterator[Trouble]:
    """Every name is assigned once. Subgraphs beside each other may use the same names, so only the main graph is looked at."""
    writers: dict[str, list[Node]] = {}
    for node in _top(graph):
        for name in node.outputs:
            if name:
                writers.setdefault(name, []).append(node)
    for name, nodes in writers.items():
        if len(nodes) > 1:
            yield f"value {name!r} is written by {len(nodes)} nodes: {nodes[0].label} and {nodes[1].label}", _RENAME
    for name, count in Counter(i.name for i in graph.initializers).items():
        if count > 1:
            yield f"weight {name!r} is stored {count} times: runtimes differ in which one they take", _RENAME
    given = {v.name for v in graph.inputs} | {i.name for i in graph.initializers}
    for name in writers.keys() & given:
        yield f"value {name!r} is written by {writers[name][0].label} but is an input or a weight too", _RENAME
    for what, values in (("input", graph.inputs), ("output", graph.outputs)):
        for name, count in Counter(v.name for v in values).items():
            if not name:
                yield f"an {what} has no name", f"name every {what}"
            elif count > 1:
                yield f"{what} {name!r} is listed {count} times", f"list every {what} once"


_RENAME = "export again; if a tool merged graphs, let it give every value a name of its own"


def _order(graph: Graph) -> Iterator[Trouble]:
    known = {v.name for v in graph.inputs} | {i.name for i in graph.initializers}
    written = {name for node in _top(graph) for name in node.outputs}
    for node in _top(graph):
        for name in node.inputs:
            if not name or name in known:
                continue
            if name in written:
                yield (f"{node.label} reads {name!r}, which is written only later: nodes are not sorted",
                       "sort the nodes topologically")  # fmt: skip
            else:
                yield f"{node.label} reads {name!r}, which nothing writes", "export again: a node or a weight is lost"
        known.update(node.outputs)


def _weights(graph: Graph) -> Iterator[Trouble]:
    if graph.ir_version < OVERRIDABLE_FROM_IR:
        return
    stored = {i.name for i in graph.initializers}
    for value in graph.inputs:
        if value.name in stored:
            yield (f"weight {value.name!r} is also an input: a client could override it",
                   "take it out of the graph's inputs (the delivery line does so when it exports)")  # fmt: skip


def _outputs(graph: Graph) -> Iterator[Trouble]:
    known = {v.name for v in graph.inputs} | {i.name for i in graph.initializers} | {o for n in _top(graph) for o in n.outputs}
    for value in graph.outputs:
        if value.name and value.name not in known:
            yield f"output {value.name!r} is written by nothing", "export again: a node is lost"


def _files(graph: Graph) -> Iterator[Trouble]:
    if not graph.files:
        return
    model, size = next(iter(graph.files.items()))
    if size > PROTOBUF_LIMIT:
        yield f"{model!r} has {size:,} bytes, more than a protobuf message can have", "save the weights as external data"
    by_file: dict[str, list[Initializer]] = {}
    for weight in graph.initializers:
        if weight.location:
            by_file.setdefault(weight.location, []).append(weight)
    for location, weights in by_file.items():
        if location not in graph.files:
            yield (f"weight {weights[0].name!r} is stored in {location!r}, which is missing",
                   "keep the data file beside the model file, under the name that the model has for it")  # fmt: skip
            continue
        yield from _data_file(location, weights, graph.files)


def _data_file(location: str, weights: list[Initializer], files: Mapping[str, int]) -> Iterator[Trouble]:
    size, end, dead = files[location], 0, 0
    for weight in sorted(weights, key=lambda w: (w.offset, w.nbytes)):
        if weight.offset + weight.nbytes > size:
            yield (f"weight {weight.name!r} ends at byte {weight.offset + weight.nbytes:,} of {location!r}, which has {size:,}",
                   "the data file is cut short or belongs to another model: export again")  # fmt: skip
            return
        if weight.offset > end and not _aligned(end, weight.offset):
            dead += weight.offset - end
        end = max(end, weight.offset + weight.nbytes)
    if dead := dead + size - end:
        yield (f"{dead:,} of {size:,} bytes in {location!r} belong to no weight: the file was appended to when saved again",
               "save into an empty directory")  # fmt: skip


def _aligned(end: int, offset: int) -> bool:
    """Whether a gap is no more than what aligning the next weight needs."""
    return any(-(-end // a) * a == offset for a in ALIGNMENTS)
