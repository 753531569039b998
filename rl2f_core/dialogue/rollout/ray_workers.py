"""Ray rollout workers, which generate rollouts for the one process that trains.

Each worker has the base model and builds its engines from the same configuration. It loads each adapter version once
and runs shards of the requests. A rollout depends only on its request, so the results equal those of one process, in
the same order. If a worker dies, the others repeat its shard.

The workers form a placement group, in the cluster of `RAY_ADDRESS` or in a local one that ends with the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rl2f_core import registry
from rl2f_core.common.paths import ROOT
from rl2f_core.common.processes import sigterm_blocked
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import parse_recorded
from rl2f_core.config.model import ResourcesConfig
from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, StudentPolicy
from rl2f_core.errors import RunError
from rl2f_core.models.backends.base import Backend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.types import JsonObject, Rollout

GROUP = "RL2F_RAY_GROUP"
"""Environment variable: name of the placement group, by which the queue detects it."""
NAMESPACE = "rl2f"
PLACEMENT_TIMEOUT_SECONDS = 600.0
"""How long workers wait for resources that other jobs of the cluster use."""
OnProgress = Callable[[int, int], None]


def shard_requests(requests: Sequence[RolloutRequest], count: int) -> list[range]:
    """Split requests into at most `count` ranges of nearly equal length.

    If there are at least `count` groups, no group is split, since its dialogues share their prompt.
    """
    starts = [i for i, request in enumerate(requests) if i == 0 or request.group != requests[i - 1].group]
    cuts = starts if len(starts) >= count else list(range(len(requests)))
    count = min(count, len(cuts))
    ends = [0]
    for shard in range(1, count):
        ideal = shard * len(requests) / count
        left = count - shard  # each later shard needs its own cut
        possible = [cut for i, cut in enumerate(cuts) if cut > ends[-1] and len(cuts) - i >= left]
        ends.append(min(possible, key=lambda cut: (abs(cut - ideal), cut)))
    ends.append(len(requests))
    return [range(a, b) for a, b in itertools.pairwise(ends) if b > a]


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """The configuration of an engine, from which a worker builds its own."""

    environment: BaseConfig
    teacher: BaseConfig
    rollout: RolloutConfig
    reward: RewardConfig
    stop_on_correct: bool

    @classmethod
    def of(cls, engine: RolloutEngine) -> EngineSpec:
        """Describe an engine. Raises `RunError` if its teacher is not registered."""
        teacher = engine.teacher
        if registry.get("teacher", teacher.name) is not type(teacher):
            raise RunError(
                "Rollout workers cannot build this teacher, because no configuration describes it.",
                value=teacher.name,
                fix="Set resources.rollout_workers to 0.",
            )
        return cls(engine.environment.config, teacher.config, engine.config, engine.reward, engine.stop_on_correct)


class RolloutWorker:
    """Ray actor with a backend and one engine per `EngineSpec`.

    It sets the environment `variables` of the training process before a model is loaded. The run's configuration is
    plain data, because it may belong to a plugin that the actor has not loaded yet. The functions are those of `build`.
    """

    def __init__(
        self,
        variables: dict[str, str],
        config: JsonObject,
        build_backend: Callable[[BaseRun], Backend],
        build_engine: Callable[..., RolloutEngine],
    ) -> None:
        os.environ.update(variables)
        self.config = parse_recorded({**config, "resources": ResourcesConfig().model_dump(mode="json")})
        self.backend = build_backend(self.config)
        self.models = ModelPool(self.backend, self.config.backend)
        self.build_engine = build_engine
        self.engines: list[tuple[EngineSpec, RolloutEngine]] = []
        self.versions: dict[str, int] = {}

    def ready(self) -> int:
        """Return the process id; the model is then loaded."""
        return os.getpid()

    def load(self, name: str, version: int, files: dict[str, bytes]) -> None:
        """Load this version of an adapter, unless it is loaded already."""
        if self.versions.get(name) == version:
            return
        with tempfile.TemporaryDirectory(prefix="rl2f-adapter-") as folder:
            for file, data in files.items():
                (Path(folder) / file).write_bytes(data)
            self.backend.load_adapter(name, Path(folder))
        self.versions[name] = version

    def run(
        self,
        spec: EngineSpec,
        requests: Sequence[RolloutRequest],
        options: JsonObject,
        version: int,
        files: dict[str, bytes],
    ) -> list[Rollout]:
        """Run a shard of requests with this version of the adapter in `options`."""
        if options.get("adapter") is not None:
            self.load(options["adapter"], version, files)
        return self._engine(spec).run(requests, **options)

    def _engine(self, spec: EngineSpec) -> RolloutEngine:
        for known, engine in self.engines:
            if known == spec:
                return engine
        fields = ("environment", "teacher", "rollout", "reward")
        config = self.config.model_copy(update={field: getattr(spec, field) for field in fields})
        engine = self.build_engine(config, self.backend, models=self.models)
        engine = dataclasses.replace(engine, stop_on_correct=spec.stop_on_correct)
        self.engines.append((spec, engine))
        return engine


class RolloutWorkerGroup:
    """The rollout workers of a run; `on_message` is called with a message about each lost worker.

    `builders` are `build_backend` and `build_engine`, which each worker calls. Raises `RunError` if Ray is not
    installed or the cluster lacks the resources.
    """

    def __init__(self, config: BaseRun, *builders: Callable[..., Any]) -> None:
        self.size = config.resources.rollout_workers
        self.on_message: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
        self._adapters: dict[str, tuple[int, object]] = {}
        ray = connect()
        group = self._placement_group(config)
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = group.bundle_specs[0]
        variables = {k: v for k, v in os.environ.items() if k.startswith(("RL2F_", "HF_", "TOKENIZERS_"))}
        self.actors = [
            ray.remote(RolloutWorker)
            .options(
                num_cpus=bundle.get("CPU", 1),
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, i),
            )
            .remote(variables, config.model_dump(mode="json"), *builders)
            for i in range(self.size)
        ]
        try:
            self.pids: list[int] = [_get_result(ready) for ready in [actor.ready.remote() for actor in self.actors]]
        except ray.exceptions.RayError as error:
            raise RunError("A rollout worker did not start.", value=str(error)[-300:]) from error

    def _placement_group(self, config: BaseRun) -> Any:
        """Create the workers' placement group. Raises `RunError` if the cluster is too small or stays full."""
        import ray
        from ray.util import placement_group, remove_placement_group

        bundle = config.resources.bundle(config.model.device, has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
        fits = any(
            all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items())
            for node in ray.nodes()
            if node["Alive"]
        )
        group = placement_group([bundle] * self.size, strategy="PACK", name=os.environ.get(GROUP, ""))
        if not group.wait(PLACEMENT_TIMEOUT_SECONDS if fits else 0):
            remove_placement_group(group)
            raise RunError(
                f"The Ray cluster lacks the resources for {self.size} rollout workers with {bundle} each.",
                value={k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")},
                fix="Lower resources.rollout_workers, resources.num_cpus or resources.num_gpus, or add nodes.",
            )
        return group

    def load_adapter(self, name: str, folder: Path) -> None:
        """Store the files of a new adapter version for the workers."""
        import ray

        files = {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}
        version = self._adapters.get(name, (0, None))[0] + 1
        self._adapters[name] = version, ray.put(files)

    def run(
        self,
        spec: EngineSpec,
        requests: Sequence[RolloutRequest],
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> list[Rollout]:
        """Run all requests as `RolloutEngine.run`, with progress after each shard.

        Raises `RunError` if no worker is left, and the errors of an engine.
        """
        import ray

        version, files = self._adapters.get(options.get("adapter") or "", (0, {}))
        waiting = deque(shard_requests(requests, len(self.actors))) if requests else deque()
        running: dict[object, tuple[Any, range]] = {}
        finished: dict[int, Rollout] = {}
        while waiting or running:
            busy = {id(actor) for actor, _ in running.values()}
            for actor in [a for a in self.actors if id(a) not in busy][: len(waiting)]:
                shard = waiting.popleft()
                reference = actor.run.remote(spec, [requests[i] for i in shard], options, version, files)
                running[reference] = actor, shard
            if not running:
                raise RunError(
                    "All rollout workers have died.", fix="See the log for the cause; resume the run to start new ones."
                )
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            actor, shard = running.pop(done)
            try:
                rollouts = _get_result(done)
            except ray.exceptions.RayError as error:
                self.actors = [a for a in self.actors if a is not actor]
                waiting.append(shard)
                self.on_message(
                    f"A rollout worker died ({type(error).__name__}). Its {len(shard)} dialogues are repeated; "
                    f"workers left: {len(self.actors)}."
                )
                continue
            finished.update(zip(shard, rollouts, strict=True))
            if on_progress is not None:
                on_progress(len(finished), len(requests))
        return [finished[i] for i in range(len(requests))]


def _get_result(reference: object) -> Any:
    """Return the result of an actor call, or raise its original exception."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def connect() -> Any:
    """Connect to Ray and return its module. Raises `RunError` if it is not installed or no cluster responds."""
    try:
        import ray
    except ImportError as error:
        raise RunError(
            "The package ray is not installed, which resources.rollout_workers needs.",
            fix="pip install 'rl2f[ray]', or set resources.rollout_workers to 0.",
        ) from error
    if ray.is_initialized():
        return ray
    from ray.job_config import JobConfig

    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    address = os.environ.get("RAY_ADDRESS")
    local = address in (None, "", "local")
    local_options = {"include_dashboard": False} if local else {}
    try:
        with _keep_sigterm_handler(block=not local):
            ray.init(
                address=address or "local",
                namespace=NAMESPACE,
                logging_level="warning",
                configure_logging=False,
                job_config=JobConfig(_py_driver_sys_path=[str(ROOT)]),
                **local_options,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(
            "No Ray cluster responds.",
            value=address or str(error)[:200],
            fix="Start one (ray start --head) and set RAY_ADDRESS=HOST:PORT, or unset it.",
        ) from error
    return ray


@contextlib.contextmanager
def _keep_sigterm_handler(block: bool) -> Iterator[None]:
    """Restore the SIGTERM handler, because Ray's would end the process.

    With `block`, a SIGTERM meanwhile is delivered afterwards. Processes started meanwhile would inherit the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    with sigterm_blocked(block):
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)


class RayBackend:
    """The training process's backend, which also sends adapters to the workers."""

    def __init__(self, inner: Backend, workers: RolloutWorkerGroup) -> None:
        self.inner, self.workers = inner, workers

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter in this process and for the workers."""
        self.inner.load_adapter(name, folder)
        self.workers.load_adapter(name, folder)

    def copy_adapter(self, *arguments: object) -> bool:
        """Return False: the workers load files."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet while the object is copied
            raise AttributeError(name)
        return getattr(self.inner, name)


class RayRolloutEngine(RolloutEngine):
    """Engine whose dialogues run on the rollout workers."""

    def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Rollout]:
        """Run requests as `RolloutEngine.run`, one student after another."""
        workers = cast(RayBackend, self.backend).workers
        by_student: dict[StudentPolicy, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            by_student[request.student or StudentPolicy(adapter, policy)].append(i)
        finished: dict[int, Rollout] = {}
        for student, indices in by_student.items():
            own_requests = [dataclasses.replace(requests[i], student=None) for i in indices]
            rollouts = workers.run(
                EngineSpec.of(self),
                own_requests,
                _offset_progress(on_progress, len(finished), len(requests)),
                adapter=student.adapter,
                policy=student.policy,
                max_turns=max_turns,
                temperature=temperature,
            )
            finished.update(zip(indices, rollouts, strict=True))
        return [finished[i] for i in range(len(requests))]


def _offset_progress(on_progress: OnProgress | None, before: int, total: int) -> OnProgress | None:
    """Return `on_progress` for a part of the dialogues, after `before` finished ones."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)
