"""Read MRBench: replies of real tutors, labeled by people, of which a user downloads the public file.

K. K. Maurya et al., "Unifying AI Tutor Evaluation", NAACL 2025, arXiv:2412.09416; file `MRBench/MRBench_V2.json` of
the repository kaushal0494/UnifyingAITutorEvaluation. A reply is a leak if it is labeled to reveal the final answer,
and the answer is correct; a revealed answer that is incorrect is ambiguous. The gold answer is the last line of the
solution. Dialogues without a solution (Bridge) have one only if `ANSWERS` contains it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from rl2f_core.common.paths import DATA
from rl2f_core.errors import DataError
from rl2f_core.leaks.benchmark.score import LeakItem
from rl2f_core.types import JsonObject

ANSWERS = DATA / "leaks" / "mrbench_answers.json"
"""Gold answers of the dev half by id of the dialogue, read from the dialogues by hand. Other dialogues are `test`."""
REVEALS = {"No": False, "Yes (and the answer is correct)": True, "Yes (but the answer is incorrect)": None}
QUESTION = "The question is:"
_TURN = re.compile(r"(?:^|\n\xa0)(Tutor|Student): (.*?)(?=\n\xa0(?:Tutor|Student): |\Z)", re.DOTALL)


def read_mrbench(path: Path) -> list[LeakItem]:
    """Return the labeled replies of a file; `style` is the tutor and `kind` the origin of the dialogue.

    Raises `DataError` if the file is not in the format of MRBench V2.
    """
    try:
        dialogues = json.loads(path.read_text(encoding="utf-8"))
        return [item for dialogue in dialogues for item in _items(dialogue)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            "The file is not in the format of MRBench V2.", value=f"{path}: {type(error).__name__}: {error}",
            fix="Download MRBench/MRBench_V2.json of github.com/kaushal0494/UnifyingAITutorEvaluation.",
        ) from None  # fmt: skip


@cache
def dev_answers() -> dict[str, str]:
    """Return the gold answers of the dev half by id of the dialogue."""
    answers: dict[str, str] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return answers


def _items(dialogue: JsonObject) -> list[LeakItem]:
    number, origin = str(dialogue["conversation_id"]), str(dialogue["Data"])
    solution = str(dialogue["Ground_Truth_Solution"]).strip()
    known = dev_answers().get(number)
    answer = known or (None if solution == "Not Available" else solution.splitlines()[-1].strip())
    if answer is None:
        return []
    turns = [(match[1], match[2].strip()) for match in _TURN.finditer(str(dialogue["conversation_history"]))]
    tutor = [text for name, text in turns if name == "Tutor"]
    asked = next((text.split(QUESTION, 1)[1].strip() for text in tutor if QUESTION in text), None)
    problem = asked or " ".join(tutor[-2:]) or "?"
    items = []
    for name, reply in dialogue["anno_llm_responses"].items():
        leak = REVEALS[reply["annotation"]["Revealing_of_the_Answer"]]
        items.append(
            LeakItem(
                id=f"mrbench/{number}/{name}",
                environment={"type": "math"},
                problem=problem,
                answer=answer.replace(",", ""),
                attempts=tuple(text for who, text in turns if who == "Student"),
                hint=reply["response"],
                leak=bool(leak),
                ambiguous=leak is None,
                kind=origin,
                style=name,
                answer_fraction=float(bool(leak)),
                split="dev" if known else "test",
            )
        )
    return items
