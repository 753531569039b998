"""Hints about a known answer: those that give it away and those that only mention it."""

from __future__ import annotations

import json

from rl2f_core.common.paths import DATA

# Sentences about 85, which is the answer and a number of the problem: the first table asserts it, the second does not.
_SENTENCES = json.loads((DATA / "leaks" / "sentences.json").read_text(encoding="utf-8"))
ASSERTED: list[str] = _SENTENCES["asserted"]
MENTIONED: list[str] = _SENTENCES["mentioned"]


# What gives 1024 away as the answer to "What is 512 + 512?", where it stands nowhere: word for word, or in other forms.
EXACT = [
    "1024", "1024.", "1024!", "(1024)", "**1024**", "`1024`", "_1024_", '"1024"', "\u201c1024\u201d", "$1024$",
    "It is 1024.", "Think of 1024 for a moment.", "1024, of course.", "not 1000, but 1024", "=1024", "x=1024;",
    "+1024", "a+1024", "512+1024", "1024 - 0", "2000-1024", "1024\u2026", "\u20261024", "...1024", "1024:", "1024?",
    "10\u200b24", "1\u00ad024", "\uff11\uff10\uff12\uff14", "1024\u200b", "<answer>1024</answer>", "\\boxed{1024}",
    "line one\n1024\nline two", "\t1024", "1024\u00a0apples", "the answer isn't 1024", "Is it 1024?", "5,1024",
    "1024,1025", "[1024]", "1024/", "1024%", "#1024", "- 1024", "one\u20141024\u2014two", "1024's half",
]  # fmt: skip
NOT_EXACT = [
    "10240", "11024", "1024.5", "1.1024", "1,024", "1,0245", "51,024", "-1024", "\u22121024", "(-1024)", ".1024",
    "1024th", "x1024", "1024x", "1024e3", "1024e-2", "10.24", "102.4", "1 024", "1024/3", "3/1024", "1024^2",
    "1024\u00b2", "1024:30", "3:1024", "1024-digit", "1023", "1025", "", " ", "512 + 512", "512", "twelve", "v1.1024",
    "1024.1024", "10 24", "1024.0", "a1024b", "The answer is less than 1025.", "100\u00b24", "1.024,5", "0x1024",
]  # fmt: skip
EQUIVALENT = [
    "1024", "1,024", "1024.0", "1024.00", "1,0 24", "1 024", "1_024", "1'024", "+1024", "01024", "1 0 2 4",
    "\uff11\uff10\uff12\uff14", "\u0661\u0660\u0662\u0664", "1\u200b,024", "10\u200d24", "**1,024**", "$1,024$",
    "(1,024)", "1,024.", "1,024!", "10 + 1014", "10+1014", "1000 + 24", "1000+20+4", "1025 - 1", "2000 - 976",
    "-5 + 1029", "2 x 512", "2 \u00d7 512", "4 * 256", "512 + 500 + 12", "500 + 524", "The sum is 1,024.",
    "Think of 1000 + 24.", "512 + 512 = 1,024", "1,024 = 512 + 512", "Nearly: 1030 - 6", "<answer>1,024</answer>",
    "line one\n1,024", "not 1,024", "1024 + 0", "What about 1,024?",
]  # fmt: skip
NOT_EQUIVALENT = [
    "512 + 512", "512+512", "512 +512", "Add 512 + 512 again.", "The answer is 512 + 512.", "= 512 + 512", "512",
    "512 and 512", "10240", "11024", "-1024", "\u22121024", "1024.5", "1024.01", "1,024.5", "1,0245", "51,024",
    "1,024,000", "1023", "1025", "102.4", "1.024", "1.1024", "512 - 512", "512 x 512", "256 + 256", "1000 and 24",
    "10 plus something", "", " ", "one thousand", "2 x 511", "1000 + 25", "1024.5 + 0", "Which digit of 512?",
    "You added 500 and 12.", "1024th", "x1024", "1024-digit", "1/1024",
    "3 + 1020", "Is it more than 1025?", "999", "0", "512 + 511", "5 1 2", "12,5", "1 x 2 x 3",
]  # fmt: skip
