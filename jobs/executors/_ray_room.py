"""What a run asks of a Ray cluster, and whether it fits what is free: pure, without Ray.

A run is a group of processes that start together or not at all: the learner first, then the actors that play for it.
Each is a bundle of resources that has to fit on one node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from rl2f_core.config import BaseRun, parse_config
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


def bundles_of(config: BaseRun, gpus_there: bool) -> list[Bundle]:
    """What each process of a run asks for.

    Args:
        config: Of the run.
        gpus_there: The cluster has GPUs, so that `model.device: auto` means one.
    """
    wanted, model = config.resources, getattr(config, "model", None)
    device = getattr(model, "device", "cpu")
    gpus = wanted.gpus
    if gpus is None:
        gpus = 1.0 if device == "cuda" or (device == "auto" and gpus_there) else 0.0
    bundle = {"CPU": float(wanted.cpus), **({"GPU": float(gpus)} if gpus else {})}
    return [bundle] * (1 + wanted.actors)


def placed(bundles: Sequence[Bundle], free: Sequence[Bundle]) -> list[int] | None:
    """The node of each bundle, first fit, or None where they do not all fit together.

    The bundles of a run are equal, and for equal bundles first fit finds a place wherever there is one.
    """
    left = [dict(resources) for resources in free]
    chosen = []
    for bundle in bundles:
        fitting = (i for i, there in enumerate(left) if all(there.get(k, 0.0) >= v - 1e-9 for k, v in bundle.items()))
        node = next(fitting, None)
        if node is None:
            return None
        for name, amount in bundle.items():
            left[node][name] -= amount
        chosen.append(node)
    return chosen


class ClusterRoom:
    """What is free in a cluster at one moment.

    Args:
        nodes: Those that live.
        missing: Why the cluster cannot be asked; then nothing fits.
    """

    def __init__(self, nodes: Sequence[Node], missing: str = "") -> None:
        self.nodes, self.missing = nodes, missing
        self.free = [dict(node.free) for node in nodes]
        self.gpus = any(node.total.get("GPU", 0.0) > 0 for node in nodes)

    def take(self, config: str) -> tuple[str | None, str]:
        """See `jobs.executors.base.Room`."""
        if self.missing:
            return None, self.missing
        if not self.nodes:
            return None, "The Ray cluster has no living node."
        try:
            bundles = _asked(config, self.gpus)
        except RL2FError as error:  # the worker itself says what is wrong with it
            return None, f"Its configuration cannot be read. {error}"
        if placed(bundles, [node.total for node in self.nodes]) is None:
            return None, self._never(bundles)
        chosen = placed(bundles, self.free)
        if chosen is None:
            return None, self._not_now(bundles)
        for bundle, node in zip(bundles, chosen, strict=True):
            for name, amount in bundle.items():
                self.free[node][name] -= amount
        return f"ray:{'cuda' if bundles[0].get('GPU') else 'cpu'}", ""

    def described(self) -> str:
        """What the cluster has: `4 CPU, 1 GPU on 2 nodes`."""
        return f"{in_words(self._whole(('CPU', 'GPU')))} on {_nodes(len(self.nodes))}"

    def _whole(self, names: Iterable[str]) -> Bundle:
        return {name: sum(node.total.get(name, 0.0) for node in self.nodes) for name in names}

    def _never(self, bundles: Sequence[Bundle]) -> str:
        asked = in_words(bundles[0])
        if placed(bundles[:1], [node.total for node in self.nodes]) is None:
            most = "; ".join(f"{node.name}: {in_words(node.total)}" for node in self.nodes[:8])
            return f"No node of the Ray cluster has {asked} ({most})."
        return (
            f"The Ray cluster is too small for {len(bundles)} processes with {asked} each; it has "
            f"{in_words(self._whole(bundles[0]))} on {_nodes(len(self.nodes))}."
        )

    def _not_now(self, bundles: Sequence[Bundle]) -> str:
        free = {name: sum(there.get(name, 0.0) for there in self.free) for name in bundles[0]}
        each = (
            f"{len(bundles)} processes with {in_words(bundles[0])} each" if len(bundles) > 1 else in_words(bundles[0])
        )
        return f"It waits for room in the Ray cluster: it asks for {each}, and {in_words(free)} are free."


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def in_words(resources: Bundle) -> str:
    """`2 CPU, 1 GPU`; memory and what nodes call themselves are left out."""
    return (
        ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU") if name in resources) or "nothing"
    )


@functools.lru_cache(256)
def _asked(config: str, gpus_there: bool) -> list[Bundle]:
    return bundles_of(parse_config(yaml.safe_load(config)), gpus_there)
