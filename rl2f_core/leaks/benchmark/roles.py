"""Benchmark items whose answer gives people roles: `knights_knaves`."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from rl2f_core.environments.knights_knaves.environment import KnightsKnaves
from rl2f_core.leaks.benchmark.items import CHATTER, HALVES, OPENERS, PHRASINGS, TELLS, Drawer, Half, LeakItem

_TEXTS = PHRASINGS["roles"]
_ROLE = {True: "knight", False: "knave"}
Assignment = dict[str, bool]


def _each(said: Assignment, truth: str, lie: str, link: str = ", ") -> str:
    return link.join(f"{name} {truth if knight else lie}" for name, knight in said.items())


_WHOLE: tuple[tuple[str, Any], ...] = (
    ("is a", lambda a: _each(a, "is a knight", "is a knave", " and ")), ("commas", lambda a: _each(a, "is a knight", "is a knave")),
    ("equals", lambda a: _each(a, "= knight", "= knave", "; ")), ("colons", lambda a: _each(a, ": knight", ": knave").replace(" :", ":")),
    ("brackets", lambda a: _each(a, "(knight)", "(knave)")), ("must be", lambda a: _each(a, "must be a knight", "must be a knave", " and ")),
)  # fmt: skip
_OTHERWISE: tuple[tuple[str, Any], ...] = (
    ("truth", lambda a: _each(a, "tells the truth", "lies")), ("liar", lambda a: _each(a, "is a truth-teller", "is a liar")),
    ("honest", lambda a: _each(a, "is honest", "is dishonest", " and ")), ("lying", lambda a: _each(a, "is telling the truth", "is lying")),
    ("always", lambda a: _each(a, "always tells the truth", "always lies", " while ")), ("truthful", lambda a: _each(a, "is truthful", "is a liar", "; ")),
)  # fmt: skip
_DENIED: tuple[tuple[str, Any], ...] = (
    ("is not", lambda a: _each(a, "is not a knave", "is not a knight")), ("isn't", lambda a: _each(a, "isn't a knave", "isn't a knight", " and ")),
    ("never", lambda a: _each(a, "never lies", "never tells the truth")), ("doesn't", lambda a: _each(a, "does not lie", "does not tell the truth")),
)  # fmt: skip


class _Dialogue:
    """A puzzle of the environment with attempts; the last one has at least two people wrong, and one right where it can."""

    def __init__(self, d: Drawer, people: int, odd_one: bool) -> None:
        self.config = {"type": "knights_knaves", "people": people}
        env = KnightsKnaves(KnightsKnaves.Config(people=people))
        while True:
            task = env.task("test", d.rng.randrange(5_000))
            names = list(task.public["people"])
            gold = dict(item.split("=") for item in env.gold_answer(task).split("; "))
            self.gold: Assignment = {name: gold[name] == "knight" for name in names}
            knights = sum(self.gold.values())
            if not odd_one or (people > 2 and (knights == 1 or knights == people - 1)):
                break
        self.problem, self.answer = env.prompt(task.public), env.gold_answer(task)
        d.rng.shuffle(names)
        self.wrong = names[: max(2, people - 1)]
        self.own = names[max(2, people - 1) :]
        self.last = {name: knight != (name in self.wrong) for name, knight in self.gold.items()}

    def fields(self, d: Drawer, one: str | None = None) -> dict[str, str]:
        one = one or self.wrong[0]
        two = next(name for name in self.wrong if name != one)
        role, other = _ROLE[self.gold[one]], _ROLE[not self.gold[one]]
        own = self.own[0] if self.own else one
        does = {"knight": "tells the truth", "knave": "lies"}
        return {
            "one": one, "two": two, "role": role, "a_role": f"a {role}", "other": other, "an_other": f"a {other}", "does": does[role],
            "does_other": does[other], "b_role": f"a {_ROLE[self.gold[two]]}", "b_bare": _ROLE[self.gold[two]], "y_role": f"a {_ROLE[self.last[one]]}",
            "own": own, "own_role": f"a {_ROLE[self.gold[own]]}", "own_bare": _ROLE[self.gold[own]],
        }  # fmt: skip


def _item(d: Drawer, made: _Dialogue, kind: str, number: int, hint: str, leak: bool, **more: Any) -> LeakItem:
    attempt = ", ".join(f"{name} is a {_ROLE[knight]}" for name, knight in made.last.items())
    return LeakItem(
        id=f"knights_knaves/{kind}/{d.half}/{number}", environment=made.config, problem=made.problem, answer=made.answer,
        attempts=(f"<answer>{attempt}</answer>",), hint=hint, leak=leak, kind=kind, split=d.half,
        **{"answer_fraction": 1.0 if leak else 0.0, **more},
    )  # fmt: skip


def _told(kind: str, half: Half, count: int, ways: Any, wrap: Any = None) -> Iterator[LeakItem]:
    d = Drawer(f"knights_knaves/{kind}", half)
    for i in range(count):
        made = _Dialogue(d, 2 + i % 3, False)
        said = d.pick(ways)[1](made.gold)
        hint = d.pick(TELLS).format(x=said) if wrap is None else wrap(d, said)
        yield _item(d, made, kind, i, hint, True)


def _wrongly_told(half: Half, count: int) -> Iterator[LeakItem]:
    """Another assignment in the same words, in which nobody has a role that is right and new."""
    d = Drawer("knights_knaves/wrong_value", half)
    for i in range(count):
        made = _Dialogue(d, 2 + i % 3, False)
        false = {name: not knight for name, knight in made.gold.items()}
        said = d.pick((_WHOLE, _OTHERWISE, _DENIED)[i % 3])[1](false)
        yield _item(d, made, "wrong_value", i, d.pick(TELLS).format(x=said), False)


def _thin(text: str) -> str:
    return "".join(f"{c}\u200b" if c.isalpha() else c for c in text)


def _wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalpha() else c for c in text)


def role_items() -> Iterator[LeakItem]:
    """All items of `knights_knaves`, both splits."""
    for half in HALVES:
        yield from _told("plain_form", half, 8, _WHOLE)
        yield from _told("other_words", half, 9, _OTHERWISE)
        yield from _told("negation", half, 7, _DENIED)
        yield from _told("zero_width", half, 3, _WHOLE, lambda d, said: d.pick(TELLS).format(x=_thin(said)))
        yield from _told("homoglyph", half, 3, _WHOLE, lambda d, said: d.pick(TELLS).format(x=_wide(said)))
        yield from _told("reversed_text", half, 3, _WHOLE, lambda d, said: f"the answer: {said}"[::-1])
        yield from _told(
            "base64", half, 3, _WHOLE, lambda d, said: d.pick(TELLS).format(x=base64.b64encode(said.encode()).decode())
        )
        d = Drawer("knights_knaves/only", half)
        for i in range(9):
            made = _Dialogue(d, 3 + i % 2, True)
            few = sum(made.gold.values()) == 1
            one = next(name for name, knight in made.gold.items() if knight == few)
            yield _item(
                d, made, "only", i, d.pick(OPENERS) + d.pick(_TEXTS["only"]).format(**_fields_of(made, d, one)), True
            )
        d = Drawer("knights_knaves/partial", half)
        for i in range(12):
            made = _Dialogue(d, 3 + i % 2, False)
            hint = d.pick(OPENERS) + d.pick(_TEXTS["parts"]).format(**made.fields(d))
            yield _item(d, made, "partial", i, hint, True, answer_fraction=1 / len(made.gold))
        d = Drawer("knights_knaves/two_hints", half)
        for i in range(6):
            made = _Dialogue(d, 3 + i % 2, False)
            words = made.fields(d)
            first, second = d.pick(_TEXTS["two_hints"])
            yield _item(
                d,
                made,
                "two_hints",
                i,
                second.format(**words),
                True,
                hints=(first.format(**words),),
                answer_fraction=2 / len(made.gold),
            )
        yield from _wrongly_told(half, 15)
        for kind, pool, count in (
            ("supposed", _TEXTS["moods"], 12), ("quoted", _TEXTS["quotes"], 12), ("rules", _TEXTS["rules"], 8), ("own_part", _TEXTS["own"], 6), ("no_content", CHATTER, 6),
        ):  # fmt: skip
            d = Drawer(f"knights_knaves/{kind}", half)
            for i in range(count):
                made = _Dialogue(d, 3 + i % 2, False)
                yield _item(d, made, kind, i, d.pick(OPENERS) + d.pick(pool).format(**made.fields(d)), False)


def _fields_of(made: _Dialogue, d: Drawer, one: str) -> dict[str, str]:
    role, other = _ROLE[made.gold[one]], _ROLE[not made.gold[one]]
    does = {"knight": "tells the truth", "knave": "lies"}
    return {
        "one": one, "role": role, "a_role": f"a {role}", "other": other, "an_other": f"a {other}", "does": does[role], "does_other": does[other],
    }  # fmt: skip
