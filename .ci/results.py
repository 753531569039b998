"""Write measured numbers into the pages, or check them: `python .ci/results.py [--check]`.

- A page contains `<!-- results: NAME -->` … `<!-- end -->`. The text between them is the Jinja template
  `data/results/templates/NAME.md`, rendered with the functions of `Renderer`; it ends with links to its data.
- `report.md` is next to every `report.json` below `data/results`, and `seeds.md` next to folders `seed-N`; a study has
  a `report.md` beside its `registration.json`.
- Figures are those that templates show. A PNG contains the digest of its data.

Numbers such as `.47` are allowed neither in the text of these pages nor in that of the templates.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rl2f_core.common.stats.intervals import Interval, correct_family  # noqa: E402
from rl2f_core.evaluation.across_seeds import (  # noqa: E402
    SeedRow,
    SeedSummary,
    join_runs,
    merge_seeds,
    sampled_tokens,
    seeds_chart,
)
from rl2f_core.evaluation.chart_data import Chart, training_chart  # noqa: E402
from rl2f_core.evaluation.counterfactual.report import CounterfactualReport  # noqa: E402
from rl2f_core.evaluation.figure_files import chart_digest, to_png  # noqa: E402
from rl2f_core.evaluation.formatting import interval_text, markdown_rows, number, verdict_text  # noqa: E402
from rl2f_core.evaluation.report import EvaluationReport  # noqa: E402
from rl2f_core.evaluation.study.registration import FILE as REGISTRATION  # noqa: E402
from rl2f_core.evaluation.study.report import StudyReport, stored_study_report  # noqa: E402

FOLDER = Path("data/results")
OTHER_PAGES = ("README.md", "data/configs/README.md", "tests/benchmarks/README.md")
"""Pages outside `data/results` with measured numbers."""
CODE = re.compile(r"\{[{%#].*?[}%#]\}", re.DOTALL)
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEASURED = re.compile(r"(?<![\w.,/:@])[+−-]?\.\d\d+")
"""A number such as .47 or +.31, as reports write it."""
TOKENS = re.compile(r"[+−-]?[\d.,]*\d|\w+|\S")
FIX = "Fix: make results"


class ResultsError(Exception):
    """A page that cannot be generated; the message names file and line."""


def read_report(path: Path) -> EvaluationReport | CounterfactualReport:
    """Read a report.json of either type."""
    data = path.read_bytes()
    model = CounterfactualReport if "kind" in json.loads(data) else EvaluationReport
    return model.model_validate_json(data)


class Results:
    """Evaluations of one experiment: one report, or the reports of several seeds."""

    def __init__(self, folder: Path, reads: Callable[[Path], Path], draw: Callable[[Chart, Path], str]) -> None:
        self.folder, self._reads, self._draw = folder, reads, draw
        paths = [folder / "report.json", *sorted(folder.glob("seed-*/report.json"))]
        self.paths = [reads(path) for path in paths if path.is_file()]
        if not self.paths:
            raise LookupError(f"{folder.name} has no report.json")

    @cached_property
    def reports(self) -> dict[str, EvaluationReport]:
        """Reports by seed; several runs of a seed are joined."""
        by_seed: dict[str, list[EvaluationReport]] = {}
        for path in self.paths:
            report = EvaluationReport.model_validate_json(path.read_bytes())
            by_seed.setdefault(str(report.seed), []).append(report)
        return {seed: join_runs(reports) for seed, reports in sorted(by_seed.items(), key=lambda pair: int(pair[0]))}

    @cached_property
    def summary(self) -> SeedSummary:
        """Reports merged over seeds."""
        return merge_seeds(self.reports)

    @property
    def first(self) -> EvaluationReport:
        """Report of the first seed."""
        return next(iter(self.reports.values()))

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.reports)

    @cached_property
    def environments(self) -> list[Any]:
        """Hardware, versions and times of the runs; empty if they were not recorded."""
        files = [path.with_name("environment.json") for path in self.paths]
        return [json.loads(self._reads(file).read_text(encoding="utf-8")) for file in files if file.is_file()]

    @cached_property
    def config(self) -> Any:
        """Configuration of the first run."""
        return yaml.safe_load(self._reads(self.paths[0].with_name("config.yaml")).read_text(encoding="utf-8"))

    def stage(self, name: str) -> dict[str, Any]:
        """Return the configuration of a stage."""
        found = [stage for stage in self.config["stages"] if stage["name"] == name]
        return found[0] if found else self._missing(f"stage {name}")

    def checkpoint(self, stage: str) -> str:
        """Return the last checkpoint of a stage; a checkpoint's own name is returned as it is."""
        names = self.first.checkpoints
        found = [name for name in names if stage in (name, name.partition("@")[0])]
        return max(found or [self._missing(stage)], key=lambda name: int(name.partition("@")[2] or 0))

    def value(self, stage: str, quantity: str, condition: str = "hints") -> Interval:
        """Return a metric of a checkpoint, over all seeds; `solved` is cum_acc of all turns, `first` of one."""
        name, checkpoint = self._metric(quantity), self.checkpoint(stage)
        if self.seeds > 1:
            rows = {row.checkpoint: row.mean for row in self._rows(condition, name)}
            return rows.get(checkpoint, Interval(value=None, n=0))  # undefined in every seed
        metrics = self.first.metrics(checkpoint, condition)
        return metrics[name] if metrics is not None else self._missing(f"{checkpoint} under {condition}")

    def has(self, stage: str, condition: str) -> bool:
        """Return whether a checkpoint was evaluated under a condition."""
        return self.first.metrics(self.checkpoint(stage), condition) is not None

    def effect(self, stage: str, condition: str = "hints") -> Interval:
        """Return the solve rate under a condition minus that under contentless feedback."""
        checkpoint = self.checkpoint(stage)
        if self.seeds > 1:
            rows = self._rows(condition, "hint_effect" if condition == "hints" else "effect")
            return {row.checkpoint: row.mean for row in rows}[checkpoint]
        return self.first.effect(checkpoint, condition) or self._missing(f"effect of {checkpoint} under {condition}")

    def difference(self, stage: str, against: str, quantity: str = "cum_acc") -> Interval:
        """Return a quantity of one checkpoint minus that of another one."""
        a, b = self.checkpoint(stage), self.checkpoint(against)
        if (found := self._difference(a, b, quantity)) is not None:
            return found
        reverse = self._difference(b, a, quantity) or self._missing(f"difference of {quantity}, {a} − {b}")
        return negative(reverse)

    def above_zero(self, stage: str, condition: str = "hints") -> int:
        """Return in how many seeds the own interval of the effect is above 0."""
        effects = [report.effect(self.checkpoint(stage), condition) for report in self.reports.values()]
        return sum(effect is not None and effect.above(0) for effect in effects)

    def by_seed(self, stage: str, quantity: str, condition: str = "hints") -> list[Interval]:
        """Return a metric of a checkpoint in each seed."""
        name = self._metric(quantity)
        found = [report.metrics(self.checkpoint(stage), condition) for report in self.reports.values()]
        return [metrics[name] for metrics in found if metrics is not None]

    def tokens(self, stage: str) -> list[int]:
        """Return the tokens that were sampled up to a checkpoint, by seed; empty if the notes have none."""
        name = self.checkpoint(stage)
        return [count for r in self.reports.values() if (count := sampled_tokens(r, name)) is not None]

    def differences(self, against: str, quantity: str) -> dict[str, Interval]:
        """Return the difference of every trained checkpoint to one of them."""
        names = [name for name in self.first.checkpoints if name not in ("base", self.checkpoint(against))]
        return {name: self.difference(name, against, quantity) for name in names}

    def table(self, *metrics: str, by_seed: str = "") -> str:
        """Return all checkpoints and reference policies under all conditions, as a Markdown table.

        `metrics` are further ones under `hints`; `by_seed` is a quantity that is shown for each seed, such as `first`.
        """
        conditions = self.first.conditions if self.first.turns > 1 else []
        effects = "contentless" in conditions
        header = ["checkpoint", "first attempt", *(["by seed"] if by_seed else []), *conditions]
        header += [*(["hints − contentless"] if effects else []), *metrics, "sampled tokens"]
        rows = [self._table_row(name, conditions, effects, metrics, by_seed) for name in self.first.checkpoints]
        for name, cells in self._reference_rows(conditions):
            seeds = [""] if by_seed else []
            rows.append([name, cells.get("first", ""), *seeds, *(cells.get(c, "") for c in conditions)])
        return table(header, [row + [""] * (len(header) - len(row)) for row in rows])

    def _table_row(
        self, name: str, conditions: Sequence[str], effects: bool, metrics: Sequence[str], by_seed: str
    ) -> list[str]:
        solved = [short_interval(self.value(name, "solved", c)) if self.has(name, c) else "" for c in conditions]
        seeds = [" ".join(number(v.value) for v in self.by_seed(name, by_seed))] if by_seed else []
        effect = [short_interval(self.effect(name), signed=True)] if effects else []
        tokens = " ".join(f"{count:,}" for count in self.tokens(name))
        rest = [*effect, *(short_interval(self.value(name, metric)) for metric in metrics), tokens]
        return [name, short_interval(self.value(name, "first")), *seeds, *solved, *rest]

    def _reference_rows(self, conditions: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        report = self.first
        if report.references and conditions:
            once, last = report.references[0].without_hints, report.references[-1]
            best = {"hints": last.with_hints, "contentless": last.without_hints}
            best["resample"] = 1 - (1 - once) ** last.turn
            yield "optimal policy", {"first": number(once)} | {c: number(v) for c, v in best.items()}
            if last.copying is not None:
                yield "copy-only policy", {"first": number(once), "hints": number(last.copying)}
        if report.constant_baseline is not None:
            yield "best constant answer", {"first": number(report.constant_baseline.score)}

    def seeds_figure(self) -> str:
        """Draw the effects over seeds."""
        return self._draw(seeds_chart(self.summary), self.folder / "seeds.png")

    def training_figure(self, stage: str, seed: int = 0) -> str:
        """Draw the training curves of a stage; empty without a training.json."""
        path = self.paths[min(seed, len(self.paths) - 1)].with_name("training.json")
        if not path.is_file():
            return ""
        columns = json.loads(self._reads(path).read_text(encoding="utf-8"))[stage]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return self._draw(training_chart(rows, f"Training: stage {stage}"), path.with_name(f"training_{stage}.png"))

    def _metric(self, quantity: str) -> str:
        """Return the metric of a quantity of `value`."""
        return {"solved": f"cum_acc/{self.first.turns}", "first": "cum_acc/1"}.get(quantity, quantity)

    def _difference(self, checkpoint: str, against: str, quantity: str) -> Interval | None:
        if self.seeds > 1:
            key = (f"{checkpoint} − {against}", f"difference of {quantity}")
            return next((row.mean for row in self.summary.rows if (row.checkpoint, row.quantity) == key), None)
        return self.first.difference(checkpoint, against, quantity)

    def _rows(self, condition: str, quantity: str) -> list[SeedRow]:
        rows = [row for row in self.summary.rows if (row.condition, row.quantity) == (condition, quantity)]
        return rows or self._missing(f"{quantity} under {condition}")

    def _missing(self, what: str) -> Any:
        raise LookupError(f"{self.folder.name} has no {what}")


def negative(interval: Interval) -> Interval:
    """Return the interval of the negative value."""
    ends = {"value": interval.value, "low": interval.high, "high": interval.low}
    return interval.model_copy(update={key: None if end is None else -end for key, end in ends.items()})


class Renderer:
    """Renders templates; `used` and `figures` collect the data that they read and the figures that they show."""

    def __init__(self, root: Path) -> None:
        self.root, self.page = root, root
        self.used: list[Path] = []
        self.figures: dict[Path, Chart] = {}
        load, strict = jinja2.FileSystemLoader(root / FOLDER / "templates"), jinja2.StrictUndefined
        self.jinja = jinja2.Environment(loader=load, undefined=strict, trim_blocks=True, lstrip_blocks=True)
        names = ("results", "values", "study", "data", "exists", "family", "files", "folders", "provenance")
        self.jinja.globals |= {name: getattr(self, name) for name in names} | {"table": table}
        self.jinja.filters |= {
            "ci": short_interval, "effect": partial(short_interval, signed=True),
            "number": number, "verdict": verdict, "data": self.data,
            "spread": spread, "median": median, "share": share, "minutes": minutes,
        }  # fmt: skip

    def render(self, name: str, page: Path) -> str:
        """Render a template for a page, with links to its data. Raises `ResultsError`."""
        self.page, self.used = page, []
        try:
            text = self.jinja.get_template(f"{name}.md").render()
        except Exception as error:
            template = self.root / FOLDER / "templates" / f"{name}.md"
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(template)]
            line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else 1)
            raise ResultsError(f"{template.relative_to(self.root)}:{line}: {error}") from error
        return f"{text.strip()}{self._sources()}\n"

    def results(self, name: str) -> Results:
        """Return the evaluations in a folder of `data/results`."""
        return Results(self.root / FOLDER / name, self._reads, self._figure)

    def values(self, name: str) -> CounterfactualReport:
        """Return the report of a fork or of hint values."""
        return CounterfactualReport.model_validate(self.data(f"{name}/report.json"))

    def study(self, folder: str | Path) -> StudyReport:
        """Return the report of a study from its folder in `data/results`."""
        file = self._reads(self.root / FOLDER / folder / REGISTRATION)
        parts = {f"{part.parent.name}-{part.name}": part for part in file.parent.glob("*/seed-*")}
        return stored_study_report(file.parent, parts)[0]

    def data(self, name: str) -> Any:
        """Return the content of a JSON file of `data/results`."""
        path = Path(os.path.normpath(self.root / FOLDER / name))
        return json.loads(self._reads(path).read_text(encoding="utf-8"))

    def exists(self, name: str) -> bool:
        """Return whether a file or folder of `data/results` exists."""
        return (self.root / FOLDER / name).exists()

    def files(self, pattern: str) -> list[str]:
        """Return the files of `data/results` that match a pattern."""
        return sorted(path.relative_to(self.root / FOLDER).as_posix() for path in (self.root / FOLDER).glob(pattern))

    def folders(self, name: str) -> list[str]:
        """Return the experiments below a folder of `data/results`."""
        below = {group_of(path) for path in (self.root / FOLDER / name).rglob("report.json")}
        return sorted(path.relative_to(self.root / FOLDER).as_posix() for path in below)

    def family(self, names: Sequence[str], against: str, quantity: str) -> dict[str, Any]:
        """Return the differences to a checkpoint in several experiments as one family of comparisons.

        The keys are `found` (findings after Holm's correction, as (checkpoint, difference) by experiment), `count`
        (number of comparisons) and `corrected` (whether all have p-values, which old reports lack).
        """
        pairs = [(n, c, d) for n in names for c, d in self.results(n).differences(against, quantity).items()]
        corrected = correct_family([d for *_, d in pairs])
        found: dict[str, list[tuple[str, Interval]]] = {name: [] for name in names}
        for (name, checkpoint, _), difference in zip(pairs, corrected, strict=True):
            if verdict_text(difference, "above", "below") in ("above", "below"):
                found[name].append((checkpoint, difference))
        return {"found": found, "count": len(pairs), "corrected": all(d.p_value is not None for d in corrected)}

    def provenance(self) -> str:
        """Return a table of the runs behind all results."""
        rows = []
        groups: dict[Path, list[Path]] = {}
        for path in report_files(self.root):
            groups.setdefault(group_of(path), []).append(path)
        for group, paths in groups.items():
            files = [path.with_name("environment.json") for path in paths]
            known = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
            columns = (
                dict.fromkeys((e["commit"] or "")[:7] for e in known),
                dict.fromkeys(e["hardware"] and "{cpu}, {cores} cores".format(**e["hardware"]) for e in known),
                [minutes(e["wall_seconds"]) for e in known],
                [minutes(e["cpu_seconds"]) for e in known],
            )
            cells = [", ".join(filter(None, column)) or "not recorded" for column in columns]
            config = (files[0].with_name("config.yaml")).relative_to(self.root).as_posix()
            command = known[0]["command"] if known else f"rl2f train {config}"
            command = f"`{command}`" if known or (self.root / config).is_file() else "not recorded"
            rows.append([group.relative_to(self.root / FOLDER).as_posix(), str(len(paths)), *cells, command])
        return table(["results", "runs", "commit", "hardware", "minutes", "CPU minutes", "command of the first"], rows)

    def _reads(self, path: Path) -> Path:
        self.used.append(path)
        return path

    def _figure(self, chart: Chart, path: Path) -> str:
        self.figures[path] = chart
        return f"![{chart.title}]({self._link(path)})"

    def _link(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.page.parent)).as_posix()

    def _sources(self) -> str:
        """Link the data that the template read; files of the same name in neighboring folders are one link."""
        groups: dict[tuple[Path, str], list[Path]] = {}
        for path in dict.fromkeys(self.used):
            if path.suffix == ".json":
                groups.setdefault((path.parent.parent, path.name), []).append(path)
        links = []
        for (parent, name), paths in groups.items():
            text = (parent / "*" / name if len(paths) > 1 else paths[0]).relative_to(self.root).as_posix()
            links.append(f"[{text}]({self._link(parent if len(paths) > 1 else paths[0])})")
        return f"\n\nData: {', '.join(links)}." if links else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(markdown_rows(header, rows))


def short_interval(interval: Interval, signed: bool = False) -> str:
    """Return an interval; only the value if the reports cannot give one."""
    return number(interval.value, signed) if interval.low is None else interval_text(interval, signed=signed)


def verdict(interval: Interval, above: str = "above 0", below: str = "below 0") -> str:
    """Return whether the interval is above or below 0."""
    return "not tested" if interval.low is None else verdict_text(interval, above, below)


def spread(ratio: dict[str, float], digits: int = 2) -> str:
    """Format a benchmark's ratio as `2.71 (2.70–2.76)`."""
    return "{median:.{d}f} ({low:.{d}f}–{high:.{d}f})".format(**ratio, d=digits)


def share(result: dict[str, Any], gflops: Sequence[float]) -> str:
    """Return which part of the machine's matrix products our side of a benchmark reaches, in percent."""
    ours = result["ours"]
    pairs = zip(result["work"][ours], result["answers"][ours], strict=True)
    return f"{100 * median(work / answer['seconds'] for work, answer in pairs) / (1e9 * max(gflops)):.0f} %"


def minutes(seconds: float | None) -> str:
    """Format seconds as minutes; empty if unknown."""
    return "" if seconds is None else f"{seconds / 60:.0f}"


def report_files(root: Path) -> list[Path]:
    """List all report.json below `data/results`."""
    return sorted((root / FOLDER).rglob("report.json"))


def group_of(report: Path) -> Path:
    """Return the folder of an experiment: that of the report, or its parent for `seed-N`."""
    return report.parent.parent if report.parent.name.startswith("seed-") else report.parent


def pages(root: Path) -> list[Path]:
    """List the pages with measured numbers."""
    others = [root / name for name in OTHER_PAGES if (root / name).is_file()]
    return [*others, *sorted((root / FOLDER).rglob("README.md"))]


def generate(root: Path) -> tuple[dict[Path, str], dict[Path, Chart]]:
    """Return the text of every generated file and the data of every figure. Raises `ResultsError`."""
    renderer = Renderer(root)
    texts: dict[Path, str] = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        texts[page] = BLOCK.sub(lambda m, page=page: m[1] + renderer.render(m[2], page) + m[3], text)
    for path in report_files(root):
        texts[path.with_suffix(".md")] = read_report(path).to_markdown()
    for path in sorted((root / FOLDER).rglob(REGISTRATION)):
        texts[path.with_name("report.md")] = renderer.study(path.parent).to_markdown()
    for group in {group_of(path) for path in report_files(root)}:
        if len(list(group.glob("seed-*/report.json"))) > 1:
            name = group.relative_to(root / FOLDER).as_posix()
            texts[group / "seeds.md"] = renderer.results(name).summary.to_markdown()
    return texts, renderer.figures


def unmarked(root: Path) -> Iterator[str]:
    """Yield a problem for every measured number that is not generated."""
    for page in pages(root):
        text = BLOCK.sub(lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8"))
        yield from _numbers(page.relative_to(root), text, "is outside of <!-- results: NAME --> … <!-- end -->")
    for template in sorted((root / FOLDER / "templates").glob("*.md")):
        text = CODE.sub(lambda m: "\n" * m[0].count("\n"), template.read_text("utf-8"))
        yield from _numbers(template.relative_to(root), text, "does not come from data")


def _numbers(path: Path, text: str, problem: str) -> Iterator[str]:
    for line, content in enumerate(text.splitlines(), 1):
        for match in MEASURED.finditer(content):
            yield f"{path}:{line}: {match[0]} {problem}. Fix: use a template in {FOLDER}/templates, then make results"


def outdated(root: Path, texts: dict[Path, str], figures: dict[Path, Chart]) -> Iterator[str]:
    """Yield a problem for every generated file that disagrees with its data."""
    for path, expected in texts.items():
        name = path.relative_to(root)
        found = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found != expected:
            yield f"{name}:{_first_difference(found, expected)}. {FIX}"
    for path, chart in figures.items():
        if not shows(path, chart):
            yield f"{path.relative_to(root)}: the figure does not show its data. {FIX}"
    for path in sorted(set((root / FOLDER).rglob("*.png")) - set(figures)):
        yield f"{path.relative_to(root)}: no template shows this figure. Fix: remove it"


def shows(path: Path, chart: Chart) -> bool:
    """Return whether a PNG was drawn from this data."""
    return path.is_file() and chart_digest(chart).encode() in path.read_bytes()


def _first_difference(found: str, expected: str) -> str:
    """Return the line and the first token that differ."""
    old, new = found.splitlines(), expected.splitlines()
    shared = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    line = shared[0] if shared else min(len(old), len(new))
    a, b = (TOKENS.findall(lines[line]) if line < len(lines) else [] for lines in (old, new))
    pairs = [(x, y) for x, y in zip([*a, "(nothing)"], [*b, "(nothing)"], strict=False) if x != y]
    wrong, right = pairs[0] if pairs else ("the text", "generated")
    return f"{line + 1}: {wrong} should be {right} according to the data"


def run(root: Path, check: bool) -> list[str]:
    """Write all generated files unless `check`; return what disagrees with the data, one line each."""
    try:
        texts, figures = generate(root)
    except ResultsError as error:
        return [str(error)]
    for path, text in () if check else texts.items():
        path.write_text(text, encoding="utf-8")
    for path, chart in () if check else figures.items():
        if not shows(path, chart):
            path.write_bytes(to_png(chart))
    return [*outdated(root, texts, figures), *unmarked(root)]


if __name__ == "__main__":
    found = run(ROOT, check="--check" in sys.argv)
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    raise SystemExit(1 if found else 0)
