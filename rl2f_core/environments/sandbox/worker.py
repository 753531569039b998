"""The worker program: one JSON object per line in and out, on private pipes.

The pool starts it as a file, so it imports nothing of this project.  Its input comes from a model and is never
evaluated.  During a job the process cannot write a file, start a program or open a socket.  The
kernel's alarm ends a job after its time limit, even if the parent process is gone.

Jobs: `math` compares two answers with math-verify; `gym` creates entries of a reasoning-gym data set; `score` scores an
answer with the data set's scorer.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import re
import select
import signal
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 4 << 30
"""Limit of the address space."""
MAX_COMPARED_DIGITS = 1000
"""Digits to which two numbers are evaluated that may be equal."""
POLL_SECONDS = 5.0
"""Interval between checks that the parent process is alive."""
_FORBIDDEN = tuple(
    "subprocess. os.system os.exec os.fork os.posix_spawn os.spawn os.remove os.rename os.rmdir os.mkdir os.link "
    "os.symlink os.chmod os.chown os.kill os.truncate socket. shutil. ctypes.dlopen pty. urllib. ftplib. "
    "smtplib.".split()
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EXPRESSION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z]+|[+\-*/^(), =\n]|\.[0-9]+)*")
_IMAGINARY_UNIT = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])|\\(?:mathbb\{C\}|det|arg|Re|Im)(?![a-zA-Z])")
_NAMES = frozenset("sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log ln sqrt pi E C Abs".split())
_SYMBOLIC = frozenset(
    "simple_integration intermediate_integration polynomial_multiplication puzzle24 countdown".split()
)
"""Data sets whose scorers pass the answer to sympy's parse_expr, which evaluates it."""
_EVALUATING = (
    "algorithmic.string_insertion algorithmic.spiral_matrix algorithmic.binary_matrix algorithmic.number_sorting "
    "games.n_queens"
).split()
"""Modules whose scorers call `eval` on the answer to parse a list."""
_PLOTTING = re.compile(r"(?:matplotlib|mpl_toolkits)(\.|$)")
_working = False


# -- jobs ----------------------------------------------------------------------------------------------------------
def equal(gold: str, answer: str, places: int = 0) -> bool:
    """Return whether two LaTeX expressions are equal by math-verify, with exact numbers.

    If `places` is positive, an answer that rounds to the gold answer, a decimal with so many places, is equal too.
    """
    grader = patched_grader()
    real = not _IMAGINARY_UNIT.search(f"{gold} {answer}")
    first, second = parsed(gold, real), parsed(answer, real)
    if first is None or second is None:
        return False
    if not (gold.startswith("\\{") or answer.startswith("\\{")):
        first, second = with_repeated(first, second)
    first, second = with_imaginary_unit(first, second)
    return grader.verify(first, second, timeout_seconds=None) or bool(places and rounds_to(second, first, places))


@functools.lru_cache(1)
def patched_grader() -> Any:
    """Return math-verify's module of comparisons, with exact numbers, symbols with case, and ordered tuples."""
    from latex2sympy2_extended import symbols
    from math_verify import grader

    symbols.sympy_singleton_map.pop("Gamma", None)
    grader.sympy_numeric_eq = same_number  # it rounds to 6 places, and drops values below 1e-15
    grader.sympy_compare_symbols = same_name
    grader.sympy_compare_sets = functools.partial(same_elements, grader.sympy_compare_sets)
    return grader


@functools.lru_cache(256)
def parsed(text: str, real: bool) -> Any:
    """Return a LaTeX expression as one of sympy, whose symbols have case and may be known as real; or None."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy2
    from math_verify import LatexExtractionConfig, parser

    def convert(latex: str, **options: Any) -> Any:
        config = latex2sympy2.ConversionConfig(lowercase_symbols=False)
        return latex2sympy2.latex2sympy(latex, **{**options, "is_real": real or None, "conversion_config": config})

    parser.latex2sympy = convert
    parser.parse_latex_cached.cache_clear()
    # LaTeX only: the package parses plain expressions with sympy's parse_expr, which evaluates its input
    plain = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="all")
    config = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=plain),)
    found = parser.parse(f"$\\boxed{{{text}}}$", config, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def with_repeated(*expressions: Any) -> tuple[Any, ...]:
    """Replace lists of which one repeats a value by sorted tuples; as sets, `1,1,2` and `1,2,2` would be equal."""
    from math_verify.grader import sort_key
    from sympy import Tuple

    if not all(hasattr(expression, "_unsorted_args") for expression in expressions):
        return expressions
    lists = [expression._unsorted_args for expression in expressions]
    if all(len(e.args) == len(values) for e, values in zip(expressions, lists, strict=True)):
        return expressions
    return tuple(Tuple(*sorted(values, key=sort_key)) for values in lists)


def with_imaginary_unit(*expressions: Any) -> tuple[Any, ...]:
    """Replace the symbol i by the imaginary unit, unless j, k or an index i make it a vector or an index."""
    from sympy import I

    symbols = {symbol for expression in expressions for symbol in getattr(expression, "free_symbols", ())}
    units = [symbol for symbol in symbols if symbol.name == "i"]
    if not units or any(re.search("^[jk]$|_.*i", symbol.name) for symbol in symbols):
        return expressions
    return tuple(expression.subs(units[0], I) for expression in expressions)


def same_name(one: Any, other: Any, *_: object) -> bool:
    """Return whether a symbol and an expression have the same letters; case matters unless they are a word."""
    from latex2sympy2_extended.symbols import GREEK_LETTER_MAP

    first, second = letters(one), letters(other)
    is_word = len(first) > 2 and first.isalpha() and first not in GREEK_LETTER_MAP.values()
    return first == second or (is_word and first.casefold() == second.casefold())


def letters(expression: Any) -> str:
    """Return the name of a symbol, or those of a product of symbols in their order."""
    from sympy import E, Mul, Symbol

    if isinstance(expression, Mul) and all(arg == E or isinstance(arg, Symbol) for arg in expression.args):
        return "".join(map(letters, expression.args))
    return "e" if expression == E else str(expression)


def same_elements(compare: Callable[..., bool], gold: Any, value: Any, *more: object) -> bool:
    """Compare sets, intervals and tuples; a set in braces is neither a point nor a single value."""
    from sympy import FiniteSet, Interval, Set, Tuple
    from sympy.core.relational import Relational

    ordered = [isinstance(expression, (Interval, Tuple)) for expression in (gold, value)]
    if isinstance(value, FiniteSet) and (ordered[0] or not isinstance(gold, Set)):
        return False
    if isinstance(gold, FiniteSet) and ordered[1] and not any(isinstance(arg, Relational) for arg in gold.args):
        return False
    return compare(gold, value, *more)


def same_number(one: Any, other: Any, *_: object) -> bool:
    """Return whether two expressions of sympy have the same value; false if that is not certain."""
    try:
        difference = one.doit() - other.doit()
        if difference.free_symbols or not hasattr(difference, "as_real_imag"):
            return bool(difference == 0)
        parts = difference.evalf(15, maxn=MAX_COMPARED_DIGITS).as_real_imag()
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        return False
    # a part of precision 1 has no certain digit: it is 0 in so many digits
    return all(part == 0 or getattr(part, "_prec", 0) == 1 for part in parts)


def rounds_to(value: Any, gold: Any, places: int) -> bool:
    """Return whether a number that is not a decimal rounds to a decimal with so many places."""
    if not getattr(value, "is_real", False) or value.free_symbols or value.is_Rational:
        return False
    return bool(abs((value - gold).evalf(50)) * 2 * 10**places < 1)


def entries(
    name: str, settings: dict[str, object], seed: int, size: int, indices: list[int]
) -> list[dict[str, str | None]]:
    """Return questions, answers and worked solutions at positions of a data set."""
    key = json.dumps(settings, sort_keys=True)
    return [
        {
            "question": str(entry["question"]),
            "answer": entry["answer"] if isinstance(entry["answer"], str) else None,
            "solution": str((entry.get("metadata") or {}).get("answer_cot") or "") or None,
        }
        for entry in (entry_at(name, key, seed, size, index) for index in indices)
    ]


def countdown_metadata(question: str, gold: str) -> dict[str, object]:
    """Return numbers and target of a problem by its gold expression; empty if the question lacks one of them."""
    from sympy.parsing.sympy_parser import parse_expr

    if not is_safe_expression(gold):
        return {}
    numbers, target = [int(text) for text in re.findall(r"\d+", gold)], float(parse_expr(gold))
    given = Counter(int(text) for text in re.findall(r"\d+", question))
    return {"numbers": numbers, "target": target} if Counter([*numbers, target]) <= given else {}


def score(
    name: str,
    settings: dict[str, object],
    seed: int,
    size: int,
    answer: str,
    index: int | None = None,
    question: str = "",
    gold: str = "",
) -> float:
    """Return the score of an answer by the data set's scorer, 0…1.

    The entry is generated again from its index. Without an index it has only a question and a gold answer, from which
    the numbers and the target of `countdown` follow; other scorers that need more raise.
    """
    key = json.dumps(settings, sort_keys=True)
    data = dataset(name, key, seed, size)
    more = countdown_metadata(question, gold) if name == "countdown" and index is None else {}
    entry: object = {"question": question, "answer": gold, "metadata": more}
    if index is not None:
        entry = entry_at(name, key, seed, size, index)
    if name in _SYMBOLIC and not is_safe_expression(answer):
        return 0.0
    value = float(data.score_answer(answer, entry))
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def is_safe_expression(text: str) -> bool:
    """Return whether a text has only numbers, operators and known function or one-letter names."""
    if len(text) > 1000 or not _EXPRESSION.fullmatch(text):
        return False
    names = re.findall(r"[A-Za-z]+", text)
    return all(len(name) == 1 or name in _NAMES for name in names)


@functools.lru_cache(512)
def entry_at(name: str, settings: str, seed: int, size: int, index: int) -> Any:
    """Return the entry at a position; cached because some take seconds to generate."""
    return dataset(name, settings, seed, size)[index]


@functools.lru_cache(32)
def dataset(name: str, settings: str, seed: int, size: int) -> Any:
    """Return a data set of the package. Raises `ValueError` if the settings do not fit."""
    from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset

    enter_sandbox()
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no data set {name!r}")
    options: dict[str, Any] = json.loads(settings)
    level = options.pop("level", None)
    if level is not None:
        if name not in CURRICULA:
            raise ValueError(f"data set {name!r} has no levels; leave `level` out")
        curriculum = create_curriculum(name)
        highest = max((len(a.levels) - 1 for a in curriculum.attributes.values()), default=0)
        if level > highest:
            raise ValueError(f"data set {name!r} has levels 0 to {highest}, not {level}")
        for attribute in curriculum.attributes.values():
            curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
        config = curriculum.generate_configuration({"seed": seed, "size": size, **options})
        config.validate()
        return DATASETS[name][0](config=config)
    return create_dataset(name, **{"seed": seed, "size": size, **options})


@functools.lru_cache(1)
def enter_sandbox() -> None:
    """Replace `eval` in the scorers that parse a list with it by `literal_eval`."""
    for name in _EVALUATING:
        module: Any = importlib.import_module(f"reasoning_gym.{name}")
        module.eval = ast.literal_eval


def warm(packages: str) -> bool:
    """Import the packages of a job before its time limit starts."""
    if packages == "math":
        equal("x+1", "1+x")
    elif packages == "gym":
        sys.meta_path.insert(0, _PlottingStub())
        import reasoning_gym  # noqa: F401

        enter_sandbox()
    return True


class _PlottingStub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces matplotlib, an unused dependency that takes as long to import as everything else."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if _PLOTTING.match(name) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


class _EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})  # can be called or subclassed


JOBS: dict[str, Callable[..., object]] = {"math": equal, "gym": entries, "score": score, "warm": warm}


# -- main loop -----------------------------------------------------------------------------------------------------
def _audit(event: str, details: tuple[object, ...]) -> None:
    if not _working:
        return
    if event == "open":
        mode, flags = (*details[1:3], None, None)[:2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING):
            raise PermissionError("a job may not write")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a job may not do {event}")


def reply_to(line: str) -> dict[str, object]:
    """Run the job of one line."""
    global _working
    try:
        job = json.loads(line)
        signal.alarm(int(job["limit"]) + 2)
        _working = job["job"] != "warm"
        return {"value": JOBS[job["job"]](**job["args"])}
    except MemoryError:
        return {"error": "the job ran out of memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        _working = False
        signal.alarm(0)


def main() -> None:
    import resource  # only on POSIX systems

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # output of a package must not mix with the replies
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_audit)
    parent, lines = os.getppid(), os.fdopen(0, "r", encoding="utf-8", closefd=False)
    while True:
        while not select.select([0], [], [], POLL_SECONDS)[0]:
            if os.getppid() != parent:
                return
        line = lines.readline()  # the parent waits for each reply, so no second line is buffered
        if not line:
            return
        replies.write(json.dumps(reply_to(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
