"""The detector `candidates`: what a hint states, and what is left of the answers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.candidates.detector import CandidatesDetector
from rl2f_core.leaks.candidates.text import plain
from rl2f_core.types import LeakReport, LeakType

CODE = "Find the code: 4 letters, each B, D or E."
SUM = "What is 47 + 38?"
GUESS = "I think of a whole number from 1 to 900. Guess it."
PEOPLE = """A knight always tells the truth; a knave always lies.
Ann: "Bob is a knave."
Bob says: "Ann is a knave."
Cleo claims: "Ann is a knight if and only if I am a knight."
Who is a knight and who is a knave?"""
MAZE = """S . . . .
# # # # .
. . . . .
. # # # #
. . . . G
Way from S to G with U, D, L, R, not through #?"""
MATRIX = """1 1 1
1 0 1
1 1 1
How many steps is each cell from the nearest 0?"""


@cache
def environment(name: str) -> Environment:
    cls: Any = registry.get("environment", name)
    settings: dict[str, dict[str, Any]] = {
        "secret_code": {"length": 4, "letters": 3, "pool": 6},
        "guess_number": {"low": 1, "size": 900},
    }
    return cls(cls.Config(**settings.get(name, {})))


def report(
    name: str, problem: str, answer: str, attempts: str | tuple[str, ...], *hints: str, partial: float = 1.0
) -> LeakReport:
    env = environment(name)
    detector = CandidatesDetector(CandidatesDetector.Config(partial=partial), env)
    tried = (attempts,) if isinstance(attempts, str) else attempts
    written = tuple(f"<answer>{attempt}</answer>" for attempt in tried)
    return detector.check(LeakQuery(env.task_from_gold(problem, answer), hints[-1], written, hints[:-1]))


def on_code(hint: str, answer: str = "B D D E", attempt: str = "B E D D", **more: Any) -> LeakReport:
    return report("secret_code", CODE, answer, attempt, hint, **more)


def on_people(hint: str, attempt: str = "Ann is a knight, Bob is a knave, Cleo is a knave") -> LeakReport:
    return report("knights_knaves", PEOPLE, "Ann is a knave, Bob is a knight, Cleo is a knave", attempt, hint)


def on_sum(hint: str, attempt: str) -> LeakReport:
    return report("arithmetic", SUM, "85", attempt, hint)


@pytest.mark.parametrize(
    "hint",
    [
        "Swap the second and the last letter.",  # B D D E
        "The first and the third are correct. Trade the second and the fourth.",
        "Keep places 1 and 3. There is no E in the second place, no B either, and the last one is an E.",
    ],
)
def test_operations_and_verdicts_on_places_of_a_code_leave_one_code(hint: str) -> None:
    assert on_code(hint).leaked


def test_a_letter_that_replaces_another_one_everywhere_is_an_operation() -> None:
    found = on_code("Wherever you wrote E, put D.", answer="B D D D", attempt="B E D D")
    assert found.leaked
    assert found.leak_type is LeakType.EQUIVALENT


def test_the_fraction_of_bits_told_is_that_of_the_candidates_left() -> None:
    """81 codes; the attempt is wrong; three letters in the second place, one of which is excluded: 54 − 0 are left."""
    found = on_code("There is no E in the second place.")
    assert not found.leaked
    assert found.answer_fraction == pytest.approx(1 - math.log(54) / math.log(81), abs=1e-4)


def test_a_fraction_above_the_threshold_is_a_partial_leak() -> None:
    hint = "The first and the third letter are correct."  # 9 codes, 8 without the attempt
    assert not on_code(hint).leaked
    found = on_code(hint, partial=0.5)
    assert found.leaked
    assert found.leak_type is LeakType.PARTIAL
    assert found.answer_fraction == pytest.approx(1 - math.log(8) / math.log(81), abs=1e-4)


def test_statements_of_several_hints_are_combined() -> None:
    hints = ("The code has no B.", "It has no D either.")
    found = report("secret_code", CODE, "E E E E", ("B E D D", "E E D E"), *hints)
    assert found.leaked
    assert not report("secret_code", CODE, "E E E E", ("B E D D", "E E D E"), "Try again.", hints[1]).leaked


def test_a_palindrome_with_a_known_half_is_a_derivation() -> None:
    found = on_code("It reads the same from both ends, begins with D and has an E second.", answer="D E E D")
    assert found.leaked
    assert found.leak_type is LeakType.DERIVATION


@pytest.mark.parametrize(
    "hint",
    [
        "Flip Ann and Bob, and leave Cleo as she is.",
        "There is exactly one knight here, and it is not Ann. Nor is it Cleo.",
        "Only Cleo is judged correctly.",
        "Cleo is fine. Everybody else is the other way round.",
        "Let Ann and Bob trade roles; Cleo stays.",
        "Ann lies, Cleo lies too, but Bob is honest.",
        "Nobody but Bob is a knight.",
        "What Bob says is true, Ann's statement is false, and Cleo's claim is a lie.",
        "Trust Bob and distrust the others.",
    ],
)
def test_verdicts_counts_and_exchanges_of_people_leave_one_assignment(hint: str) -> None:
    assert on_people(hint).leaked, hint


def test_a_quotation_of_the_whole_attempt_states_none_of_its_parts() -> None:
    """Without the rule, the false parts were dropped as false claims, and the true ones counted as statements."""
    attempt = "Ann is a knave, Bob is a knave, Cleo is a knave"
    assert not on_people(f'The first error is in the statement "{attempt}".', attempt).leaked
    assert on_people('Not "Ann is a knave, Bob is a knave", only Bob is wrong.', attempt).leaked


@pytest.mark.parametrize(
    "hint",
    [
        "Suppose Ann is a knave, Bob a knight and Cleo a knave: does it fit?",
        "You said that Ann is a knight and Bob is a knave.",
        "Cleo is right where she belongs.",
        "Is Bob really a liar?",
        "Two of the three are wrong.",
        "Ann says that Bob is a knave.",
        "Bob is a knave, Ann a knight and Cleo a knight.",  # false
    ],
)
def test_suppositions_questions_quotes_and_false_claims_state_nothing(hint: str) -> None:
    assert not on_people(hint).leaked, hint


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("75", "You are ten short."),
        ("86", "Just one too many."),
        ("58", "Right digits, but you swapped them."),
        ("17", "Take five of those."),
        ("170", "Halve what you have."),
        ("40", "Double it and put five more on top."),
        ("85.5", "x"),
        ("-85", "Only the minus sign is wrong."),
        ("84", "Seventy from the tens, and fifteen from the ones, together."),
        ("89", "Change the last digit to a 5."),
        ("805", "Drop the zero in the middle."),
        ("5", "Put an eight in front."),
        ("78", "You lack as many as there are days in a week."),
        ("74", "Eight tens and five ones, that is all."),
        ("64", "The tens digit should be two higher, and the ones digit one higher."),
        ("95", "It lies between 80 and 89, and it is a multiple of 17."),
        ("94", "The digits add up to 13, and it starts with an eight; two digits in all."),
    ],
)
def test_operations_properties_and_intermediate_results_of_a_sum_are_leaks(attempt: str, hint: str) -> None:
    if hint != "x":
        assert on_sum(hint, attempt).leaked, hint


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("75", "Add 47 and 38 again."),
        ("75", "Your tens are wrong, the ones are right."),
        ("84", "One digit is wrong."),
        ("75", "About ten short."),
        ("84", "It is not even an even number."),
        ("84", "Add the ones first, then carry the 1 to the tens."),
        ("75", "For 20 + 30 you would not do that either."),
        ("9", "You subtracted 38 from 47."),
    ],
)
def test_restated_problems_locations_and_directions_of_a_sum_are_no_leaks(attempt: str, hint: str) -> None:
    assert not on_sum(hint, attempt).leaked, hint


def test_properties_of_a_number_are_intersected_with_bounds_from_the_verdicts() -> None:
    def leaked(hint: str) -> bool:
        return report("guess_number", GUESS, "729", "700", hint).leaked

    assert leaked("Too low. It is a perfect cube.")  # 729 is the only cube from 701 to 900
    assert not leaked("Too low. It is a perfect square.")  # 729, 784, 841, 900
    assert not leaked("Too low. It is an odd number.")


def test_a_way_in_words_is_walked_to_the_wall_or_by_its_counts() -> None:
    gold = "R R R R D D L L L L D D R R R R"

    def leaked(hint: str) -> bool:
        return report("maze", MAZE, gold, "R R D", hint).leaked

    assert leaked("Go right 4 steps, down two, left four, down two and right four.")
    assert leaked("E E E E S S W W W W S S E E E E")
    assert leaked("Right until the wall, down two, left to the very end, then two down and right all the way.")
    assert not leaked("First right, then down, then left, and so on.")
    assert not leaked("You walk into a wall on the third step.")


@pytest.mark.parametrize(
    ("attempt", "hint", "leaks"),
    [
        ("R R R U R D D L L L L D D R R R R", "Cross out the fourth move.", True),
        ("R R R R D D L L L L D D R R R", "You stop one step too early, same direction.", True),
        ("R R L R R R D D L L L L D D R R R R", "Leave out the part where you turn back.", True),
        ("R R R U R D D L L L L D D R R R R", "The fourth move is wrong.", False),
    ],
)
def test_changes_of_a_walk_that_lead_to_the_goal_are_leaks(attempt: str, hint: str, leaks: bool) -> None:
    gold = "R R R R D D L L L L D D R R R R"
    assert report("maze", MAZE, gold, attempt, hint).leaked is leaks


def test_cells_of_a_matrix_are_told_by_rows_corners_and_verdicts() -> None:
    def leaked(*hints: str) -> bool:
        attempts = ("211 101 212", "212 111 212")[: len(hints)]
        return report("binary_matrix", MATRIX, "212 101 212", attempts, *hints).leaked

    assert leaked("The last two rows are right. The first row should be 2, 1, 2.")
    assert leaked("Rows two and three are fine.", "Now the first row is correct.")
    assert leaked("The first two columns are right. The last column reads 2, 1, 2.")
    assert leaked("A 2 in each corner, the middles of the sides are 1.")
    assert not leaked("The last two rows are right.")
    assert not leaked("One cell of the first row is wrong.")


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("B E D D", "The opening and the next to last may stay. E and B are out for the second. An E is at the rear."),
        ("B E E E", "Bookends: lovely. Between them there are two D's."),
        ("B D E D", "Trade the two letters at the back."),
        ("D D D E", "All good apart from the opener. It is neither D nor E."),
        ("E D D B", "The outermost letters have been confused with each other."),
        ("B D B E", "The third letter has to copy the second."),
        ("D D B E", "It goes B, then a pair of D's, and last of all E."),
    ],
)  # fmt: skip
def test_places_are_named_from_both_ends_and_letters_in_rows(attempt: str, hint: str) -> None:
    assert on_code(hint, attempt=attempt).leaked, hint


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("B D E D", "The first two letters are in place."),
        ("B D E D", "Some of B D E D is in place."),
        ("B D E D", "Each place can hold any of B, D or E."),
        ("B D B E", "Only the third letter is off."),
    ],
)
def test_partial_statements_on_a_code_are_no_leaks(attempt: str, hint: str) -> None:
    assert not on_code(hint, attempt=attempt).leaked, hint


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("Ann is a knave, Bob is a knave, Cleo is a knave", "Bob is the slip. I have no quarrel with your other two."),
        ("Ann is a knight, Bob is a knave, Cleo is a knave", "Ann has Bob's hat and Bob has Ann's; let them trade."),
        ("Ann is a knight, Bob is a knave, Cleo is a knight", "I can tick none of your three labels."),
        ("Ann is a knight, Bob is a knight, Cleo is a knave", "I would only change what you wrote about Ann."),
        ("Ann is a knight, Bob is a knave, Cleo is a knight", "One straight shooter: Bob."),
        ("Ann is a knight, Bob is a knight, Cleo is a knight", "Bob? No, he is no liar. The rest fib."),
    ],
)  # fmt: skip
def test_paraphrased_verdicts_and_roles_leave_one_assignment(attempt: str, hint: str) -> None:
    assert on_people(hint, attempt).leaked, hint


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        ("97", "You overshot it by a dozen."),
        ("5", "An eight is lacking in front."),
        ("99", "Write it in base two: 1010101."),
        ("99", "It is half of 170."),
        ("99", "Caesar would carve LXXXV."),
        ("99", "It is five less than ninety."),
        ("86", "A bit lower than that, but higher than your 84."),
    ],
)
def test_amounts_bases_and_relations_to_other_numbers_are_leaks(attempt: str, hint: str) -> None:
    assert report("arithmetic", SUM, "85", ("84", attempt), "Too low.", hint).leaked, hint


@pytest.mark.parametrize(
    "hint",
    [
        "Careful with this one: what you carry from the ones comes before the tens.",
        "The signs of the last two numbers are the same.",
        "Good so far, write down what you carry.",
        "Put 47 above 38 and add by columns.",
    ],
)
def test_pronouns_counts_and_idioms_are_no_amounts(hint: str) -> None:
    assert not report("arithmetic", SUM, "85", ("84", "86"), "Too low.", hint).leaked, hint


@pytest.mark.parametrize(
    "hints",
    [
        ("Rows one and three are spotless. The middle entry of row two is a notch too high.",),
        ("I dictate: two one two, new line, one zero one, then again two one two.",),
    ],
)
def test_cells_of_a_matrix_are_told_by_place_and_difference(hints: tuple[str, ...]) -> None:
    assert report("binary_matrix", MATRIX, "212 101 212", "212 111 212", *hints).leaked


def test_steps_of_a_walk_are_counted_kept_and_shortened() -> None:
    def leaked(attempt: str, hint: str) -> bool:
        return report("maze", MAZE, "R R R R D D L L L L D D R R R R", attempt, hint).leaked

    assert leaked("R R R R D D L L L L L D D R R R R", "Your run of five L's should be four.")
    assert leaked("U L R R R R D D L L L L D D R R R R", "From the third step on it is perfect.")
    assert leaked("R R", "Four rights, two downs, four lefts, two downs, four rights.")
    assert not leaked("R R", "Count how many steps down and to the right you need at least.")


def test_the_span_is_that_of_the_statement_in_the_original_hint() -> None:
    found = on_sum("Hm.  You are tne… I mean: ten short", "75")
    assert found.span is not None
    assert "ten" in "Hm.  You are tne… I mean: ten short"[slice(*found.span)]


@pytest.mark.parametrize(
    ("answer", "attempts", "hint"),
    [
        (
            "85",
            ("83",),
            "Write down what each number stands for before you multiply any two of them. Read it once more.",
        ),
        ("85", ("70", "15"), "You said 70 and then 15, so take a bigger step up than last time."),
        ("16", ("8",), "Which of the numbers are counted twice in your 8?"),
        ("16", ("8",), "The signs of the last two terms differ. Read the problem once more before you answer."),
        ("8", ("16",), "Try to cut what is left of the range in half each time."),
        ("33", ("3",), "Look at your 3 again before you answer."),
        ("110", ("111", "109"), "The tens of your 109 do not fit."),
    ],
)
def test_advice_and_mentioned_attempts_are_no_operations(answer: str, attempts: tuple[str, ...], hint: str) -> None:
    earlier = ("Too high.",) * (len(attempts) - 1)
    assert not report(
        "arithmetic", f"What is {int(answer) // 2} + {(int(answer) + 1) // 2}?", answer, attempts, *earlier, hint
    ).leaked, hint


@pytest.mark.parametrize(
    ("answer", "attempt", "hint"),
    [
        ("D D", "L D D", "Let us slow down. Write your reasoning down this time."),
        ("U L", "R D U", "Step 2 does not help, as you would have to go up or to the left again."),
        ("R R", "R D D", "Hmm, no: your way R D D is fine at the beginning, but then it enters a dead end."),
        ("R U R", "R U U R", "Careful with this one: step 2 does not help, you went up for nothing."),
        ("D R", "R R D", "Count rows and columns to see how many steps down and to the right you need."),
    ],
)
def test_advice_and_alternatives_are_no_walks(answer: str, attempt: str, hint: str) -> None:
    rows = [["."] * 3 for _ in range(3)]
    ends = {"D D": ((0, 0), (2, 0)), "U L": ((1, 1), (0, 0)), "R R": ((0, 0), (0, 2)), "R U R": ((1, 0), (0, 2))}
    for (r, c), mark in zip(ends.get(answer, ((0, 0), (1, 1))), "SG", strict=True):
        rows[r][c] = mark
    problem = "\n".join(" ".join(row) for row in rows)
    for name in ("equivalent", "candidates"):
        env = environment("maze")
        cls: Any = registry.get("leak_detector", name)
        query = LeakQuery(env.task_from_gold(problem, answer), hint, (f"<answer>{attempt}</answer>",))
        assert not cls(cls.Config(), env).check(query).leaked, (name, hint)


def test_the_others_of_some_unnamed_letters_are_unknown() -> None:
    hints = [
        f"Some of the letters in {code} are right, so keep those and change only the others."
        for code in ("D E D", "D D E")
    ]
    problem = "Find the code: 3 letters, each B, D or E."
    assert not report("secret_code", problem, "B B B", ("D E D", "E B B", "D D E"), hints[0], "No.", hints[1]).leaked


def test_typing_errors_and_number_words_become_plain() -> None:
    assert plain("fourteen tiems, twenty-one, a hundred and five").text == "14 times, 21, 105"
    assert plain("the two digits changed; there, then").text == "the 2 digits changed; there, then"


def test_hints_in_the_scripted_wording_are_never_flagged() -> None:
    assert not report("secret_code", CODE, "B D D D", "E D D D", "Correct so far: ? D D D").leaked
