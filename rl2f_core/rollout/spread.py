"""Dialogues spread over Ray actors, which feed the one process that learns.

Each actor holds the base model, and engines built from the same configuration. It gets an adapter's files once a
version, plays its share of the requests, and what it plays depends on each request alone; so the results are those of
one process, in the same order. The share of an actor that dies is played again by the others.

Where a run was given a group of resources in a cluster (`RL2F_RAY_GROUP`), its actors take all bundles but the first;
else they form a group of their own, in the cluster of `RAY_ADDRESS` or one of this machine that ends with the run.
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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rl2f_core import registry
from rl2f_core.backends.base import Backend
from rl2f_core.config import BaseRun, ResourcesConfig, parse_config
from rl2f_core.errors import RunError
from rl2f_core.rollout.engine import Request, RolloutEngine, Student
from rl2f_core.types import Rollout

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

GROUP = "RL2F_RAY_GROUP"
"""Environment variable: the placement group of the run, whose first bundle is the learner's."""
NAMESPACE = "rl2f"
ROOM_SECONDS = 60.0
"""How long actors without a group of the run's wait for their resources."""
Advanced = Callable[[int, int], None]


def shares(requests: Sequence[Request], count: int) -> list[range]:
    """Whose requests are whose: at most `count` ranges of nearly equal length, in order, none of them empty.

    A group stays together where there are at least as many groups as shares, since its members share their prompt.
    """
    starts = [i for i, request in enumerate(requests) if i == 0 or request.group != requests[i - 1].group]
    cuts = starts if len(starts) >= count else list(range(len(requests)))
    ends, wanted = [0], len(requests)
    for share in range(1, min(count, len(cuts))):
        ideal = share * wanted / min(count, len(cuts))
        left = min(count, len(cuts)) - share  # shares after this cut, each of which needs a start of its own
        fitting = [c for i, c in enumerate(cuts) if c > ends[-1] and len(cuts) - i >= left]
        ends.append(min(fitting, key=lambda cut: (abs(cut - ideal), cut)))
    ends.append(wanted)
    return [range(a, b) for a, b in itertools.pairwise(ends) if b > a]


@dataclasses.dataclass(frozen=True)
class Plan:
    """An engine as plain data, from which an actor builds its own."""

    environment: dict[str, Any]
    teacher: dict[str, Any]
    rollout: dict[str, Any]
    reward: dict[str, Any]
    oracle_stop: bool

    @classmethod
    def of(cls, engine: RolloutEngine) -> Plan:
        """The plan of an engine; raises `RunError` where its teacher is none that a configuration can name."""
        teacher = engine.teacher
        if registry.get("teacher", teacher.name) is not type(teacher):
            raise RunError("This teacher cannot play elsewhere: it follows from no configuration.", value=teacher.name,
                           fix="Set resources.actors to 0.")  # fmt: skip
        return cls(
            environment=engine.environment.config.model_dump(mode="json"),
            teacher=teacher.config.model_dump(mode="json"),
            rollout=engine.config.model_dump(mode="json"),
            reward=engine.reward.model_dump(mode="json"),
            oracle_stop=engine.oracle_stop,
        )


class Player:
    """What an actor is: a backend, and an engine for each plan that it is asked for.

    Args:
        variables: Of the learner's environment, to be set before anything is loaded.
        config: The run's, as plain data.
    """

    def __init__(self, variables: dict[str, str], config: dict[str, Any]) -> None:
        os.environ.update(variables)
        from rl2f_core.backends.pool import Models
        from rl2f_core.rollout.build import build_backend

        own = {**config, "resources": ResourcesConfig().model_dump(mode="json")}
        self.config = parse_config(own)
        self.backend = build_backend(self.config)
        self.models: Models = Models(self.backend, self.config.backend)
        self.engines: list[tuple[Plan, RolloutEngine]] = []
        self.versions: dict[str, int] = {}

    def ready(self) -> int:
        """This process's id, once the model is loaded."""
        return os.getpid()

    def load(self, name: str, version: int, files: dict[str, bytes]) -> None:
        """Read an adapter, where this version of it is not known yet."""
        if self.versions.get(name) == version:
            return
        with tempfile.TemporaryDirectory(prefix="rl2f-adapter-") as folder:
            for file, data in files.items():
                (Path(folder) / file).write_bytes(data)
            self.backend.load_adapter(name, Path(folder))
        self.versions[name] = version

    def play(
        self, plan: Plan, requests: Sequence[Request], options: dict[str, Any], version: int, files: dict[str, bytes]
    ) -> list[Rollout]:
        """Play a share of the requests, with this version of the adapter that the options name."""
        if options.get("adapter") is not None:
            self.load(options["adapter"], version, files)
        return self._engine(plan).play(requests, **options)

    def _engine(self, plan: Plan) -> RolloutEngine:
        for known, engine in self.engines:
            if known == plan:
                return engine
        from rl2f_core.rollout.build import build_engine

        fields = type(self.config).model_fields
        own = self.config.model_copy(
            update={
                "environment": _narrowed("environment", plan.environment),
                "teacher": _narrowed("teacher", plan.teacher),
                "rollout": fields["rollout"].annotation.model_validate(plan.rollout),  # type: ignore[union-attr]
                "reward": fields["reward"].annotation.model_validate(plan.reward),  # type: ignore[union-attr]
            }
        )
        engine = build_engine(own, self.backend, models=self.models)
        engine = dataclasses.replace(engine, oracle_stop=plan.oracle_stop)
        self.engines.append((plan, engine))
        return engine


def _narrowed(kind: str, data: dict[str, Any]) -> Any:
    made: Any = registry.get(kind, data["type"])
    return made.Config.model_validate(data)


class Crew:
    """The actors of a run.

    Args:
        config: Of the run, with `resources.actors` above 0.
        say: Hears what became of actors.

    Raises `RunError` where Ray is missing, or has no room for them.
    """

    def __init__(self, config: BaseRun, say: Callable[[str], None] | None = None) -> None:
        self.size = config.resources.actors
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._adapters: dict[str, tuple[int, Any]] = {}
        ray = connect()
        group, first = self._group(config)
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = group.bundle_specs[first]
        variables = {k: v for k, v in os.environ.items() if k.startswith(("RL2F_", "HF_", "TOKENIZERS_"))}
        made = [
            ray.remote(Player)
            .options(
                num_cpus=bundle.get("CPU", 1),
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, first + i),
            )
            .remote(variables, config.model_dump(mode="json"))
            for i in range(self.size)
        ]
        try:
            self.pids: list[int] = [self._value(ready) for ready in [actor.ready.remote() for actor in made]]
        except ray.exceptions.RayError as error:
            raise RunError("An actor that is to play the dialogues did not start.", value=str(error)[-300:]) from error
        self.actors = made

    def _group(self, config: BaseRun) -> tuple[Any, int]:
        """The group that the actors stand in, and their first bundle."""
        import ray
        from ray.util import get_placement_group, placement_group, remove_placement_group

        if name := os.environ.get(GROUP):
            return get_placement_group(name), 1
        gpus = config.resources.gpus
        if gpus is None:
            there = ray.cluster_resources().get("GPU", 0) > 0
            gpus = 1.0 if config.model.device == "cuda" or (config.model.device == "auto" and there) else 0.0
        bundle = {"CPU": config.resources.cpus, **({"GPU": gpus} if gpus else {})}
        fits = any(
            all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items())
            for node in ray.nodes()
            if node["Alive"]
        )
        group = placement_group([bundle] * self.size, strategy="PACK")
        if not group.wait(ROOM_SECONDS if fits else 0):
            remove_placement_group(group)
            raise RunError(
                f"The Ray cluster has no room for {self.size} actors with {bundle} each.",
                value={k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")},
                fix="Lower resources.actors, resources.cpus or resources.gpus, or add nodes.",
            )
        return group, 0

    def load_adapter(self, name: str, folder: Path) -> None:
        """Keep an adapter's files for the actors, in place of an earlier version."""
        import ray

        files = {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}
        version = self._adapters.get(name, (0, None))[0] + 1
        self._adapters[name] = version, ray.put(files)

    def play(
        self, plan: Plan, requests: Sequence[Request], advanced: Advanced | None = None, **options: Any
    ) -> list[Rollout]:
        """Play every request; the results are in order.

        Args:
            plan: The engine that plays.
            requests: What to play.
            advanced: Called with (dialogues ended, dialogues in all) whenever a share has come home.
            options: Of `RolloutEngine.play`.

        Raises `RunError` where no actor is left, and what an engine raises.
        """
        import ray

        version, files = self._adapters.get(options.get("adapter") or "", (0, {}))
        waiting = deque(shares(requests, len(self.actors))) if requests else deque()
        running: dict[Any, tuple[Any, range]] = {}
        played: dict[int, Rollout] = {}
        while waiting or running:
            busy = {id(actor) for actor, _ in running.values()}
            for actor in [a for a in self.actors if id(a) not in busy][: len(waiting)]:
                share = waiting.popleft()
                asked = [requests[i] for i in share]
                running[actor.play.remote(plan, asked, options, version, files)] = actor, share
            if not running:
                raise RunError("All actors that play the dialogues have died.",
                               fix="The log has their last words; resume the run to start new ones.")  # fmt: skip
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            actor, share = running.pop(done)
            try:
                rollouts = self._value(done)
            except ray.exceptions.RayError as error:
                self.actors = [a for a in self.actors if a is not actor]
                waiting.append(share)
                self.say(f"An actor died with {len(share)} dialogues; {len(self.actors)} are left to play them "
                         f"again. {type(error).__name__}")  # fmt: skip
                continue
            played.update(zip(share, rollouts, strict=True))
            if advanced is not None:
                advanced(len(played), len(requests))
        return [played[i] for i in range(len(requests))]

    @staticmethod
    def _value(reference: Any) -> Any:
        """What an actor returned; what it raised is raised as it was."""
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


def connect() -> Any:
    """The module `ray`, connected. Raises `RunError` where it is not installed, or no cluster answers."""
    try:
        import ray
    except ImportError as error:
        raise RunError("The package ray is not installed, which resources.actors needs.",
                       fix="pip install 'rl2f[ray]', or set resources.actors to 0.") from error  # fmt: skip
    if ray.is_initialized():
        return ray
    from ray.job_config import JobConfig

    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    packages = str(Path(__file__).resolve().parents[2])
    address = os.environ.get("RAY_ADDRESS")
    alone = address in (None, "", "local")
    here = {"include_dashboard": False} if alone else {}
    try:
        with _own_sigterm(held=not alone):
            ray.init(
                address=address or "local",
                namespace=NAMESPACE,
                logging_level="warning",
                configure_logging=False,
                job_config=JobConfig(_py_driver_sys_path=[packages]),
                **here,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(
            "No Ray cluster answers.",
            value=address or str(error)[:200],
            fix="Start one (ray start --head) and set RAY_ADDRESS=HOST:PORT, or unset it.",
        ) from error
    return ray


@contextlib.contextmanager
def _own_sigterm(held: bool) -> Iterator[None]:
    """Keep this process's way to take SIGTERM, which Ray replaces by one that ends it, and asks a run to stop here.

    With `held`, a signal that comes meanwhile waits; processes that are started meanwhile would hold it back too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if held else set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class SpreadBackend:
    """The learner's own backend, which tells the crew of every adapter; in all else it is that backend."""

    def __init__(self, inner: Backend, crew: Crew) -> None:
        self.inner, self.crew = inner, crew

    def load_adapter(self, name: str, folder: Path) -> None:
        """Read an adapter here and for the crew."""
        self.inner.load_adapter(name, folder)
        self.crew.load_adapter(name, folder)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is being copied, it has none yet
            raise AttributeError(name)
        return getattr(self.inner, name)


class SpreadEngine(RolloutEngine):
    """An engine whose dialogues the crew plays."""

    def play(
        self,
        requests: Sequence[Request],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        advanced: Advanced | None = None,
    ) -> list[Rollout]:
        """As `RolloutEngine.play`; students play one after another, and `advanced` is called once a share."""
        crew: Crew = self.backend.crew  # type: ignore[attr-defined]
        students: dict[Student, list[int]] = {}
        for i, request in enumerate(requests):
            students.setdefault(request.student or Student(adapter, policy), []).append(i)
        played: dict[int, Rollout] = {}
        for student, places in students.items():
            asked = [dataclasses.replace(requests[i], student=None) for i in places]
            told = _further(advanced, len(played), len(requests))
            rollouts = crew.play(Plan.of(self), asked, told, adapter=student.adapter, policy=student.policy,
                                 max_turns=max_turns, temperature=temperature)  # fmt: skip
            played.update(zip(places, rollouts, strict=True))
        return [played[i] for i in range(len(requests))]


def _further(advanced: Advanced | None, before: int, total: int) -> Advanced | None:
    """`advanced` for a part of the dialogues, with so many ended before it."""
    return None if advanced is None else lambda ended, _: advanced(before + ended, total)


def spread(backend: Backend, config: BaseRun) -> Backend:
    """A backend with a crew, which `build_engine` gives engines that let it play."""
    return cast(Backend, SpreadBackend(backend, Crew(config)))
