"""Resource bundles of a run and first-fit placement; no Ray import.

A run is a group of processes: the learner first, then its rollout workers. Each is a bundle of resources that must fit
on one node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import parse_recorded
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RL2FError

Bundle = Mapping[str, float]
"""Resources of one process by Ray's names: CPU, GPU."""


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    name: str
    """Its address."""
    total: Bundle
    free: Bundle


def resource_bundles(config: BaseRun, has_gpus: bool) -> list[Bundle]:
    """Return the resources of each process of a run.

    Args:
        config: Of the run.
        has_gpus: The cluster has GPUs, so that `model.device: auto` requests one.
    """
    resources, model = config.resources, getattr(config, "model", None)
    bundle = resources.bundle(getattr(model, "device", "cpu"), has_gpus=has_gpus)
    return [bundle] * (1 + resources.rollout_workers)


def first_fit(bundles: Sequence[Bundle], free: Sequence[Bundle]) -> list[int] | None:
    """Assign a node to each bundle, first fit; returns None if they do not all fit together.

    The bundles of a run are equal, and for equal bundles first fit is optimal.
    """
    left = [dict(resources) for resources in free]
    chosen = []
    for bundle in bundles:
        indices = (i for i, rest in enumerate(left) if all(rest.get(k, 0.0) >= v - 1e-9 for k, v in bundle.items()))
        node = next(indices, None)
        if node is None:
            return None
        for name, amount in bundle.items():
            left[node][name] -= amount
        chosen.append(node)
    return chosen


class ClusterCapacity:
    """Free resources of a cluster at one moment.

    Args:
        nodes: The living nodes.
        missing: Why the cluster cannot be reached; then nothing fits.
    """

    def __init__(self, nodes: Sequence[Node], missing: str = "") -> None:
        self.nodes, self.missing = nodes, missing
        self.free = [dict(node.free) for node in nodes]
        self.gpus = any(node.total.get("GPU", 0.0) > 0 for node in nodes)

    def reserve(self, config: str) -> tuple[str | None, str]:
        """See `jobs.executors.base.Capacity`."""
        if self.missing:
            return None, self.missing
        if not self.nodes:
            return None, "The Ray cluster has no living node."
        try:
            bundles = _parse_bundles(config, self.gpus)
        except RL2FError as error:  # the worker reports what is wrong with it
            return None, f"Its configuration cannot be read. {error}"
        if first_fit(bundles, [node.total for node in self.nodes]) is None:
            return None, self._infeasible_reason(bundles)
        if not self.reserve_bundles(bundles):
            return None, self._pending_reason(bundles)
        return f"ray:{'cuda' if bundles[0].get('GPU') else 'cpu'}", ""

    def reserve_bundles(self, bundles: Sequence[Bundle]) -> bool:
        """Subtract bundles from what is free. Returns False, and subtracts nothing, if they do not all fit."""
        chosen = first_fit(bundles, self.free)
        for bundle, node in zip(bundles, chosen or (), strict=False):
            for name, amount in bundle.items():
                self.free[node][name] -= amount
        return chosen is not None

    def describe(self) -> str:
        """Return e.g. `4 CPU, 1 GPU on 2 nodes`."""
        return f"{format_resources(self._total(('CPU', 'GPU')))} on {_nodes(len(self.nodes))}"

    def _total(self, names: Iterable[str]) -> Bundle:
        return {name: sum(node.total.get(name, 0.0) for node in self.nodes) for name in names}

    def _infeasible_reason(self, bundles: Sequence[Bundle]) -> str:
        requested = format_resources(bundles[0])
        if first_fit(bundles[:1], [node.total for node in self.nodes]) is None:
            totals = "; ".join(f"{node.name}: {format_resources(node.total)}" for node in self.nodes[:8])
            return f"No node of the Ray cluster has {requested} ({totals})."
        return (
            f"The Ray cluster is too small for {len(bundles)} processes with {requested} each; it has "
            f"{format_resources(self._total(bundles[0]))} on {_nodes(len(self.nodes))}."
        )

    def _pending_reason(self, bundles: Sequence[Bundle]) -> str:
        free = {name: sum(node.get(name, 0.0) for node in self.free) for name in bundles[0]}
        each = (
            f"{len(bundles)} processes with {format_resources(bundles[0])} each"
            if len(bundles) > 1
            else format_resources(bundles[0])
        )
        return f"Waiting for Ray: needs {each}, free {format_resources(free)}."


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def format_resources(resources: Bundle) -> str:
    """Return e.g. `2 CPU, 1 GPU`; other resources are omitted."""
    return (
        ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU") if name in resources) or "nothing"
    )


@functools.lru_cache(256)
def _parse_bundles(config: str, has_gpus: bool) -> list[Bundle]:
    return resource_bundles(parse_recorded(load_yaml(config)), has_gpus)
