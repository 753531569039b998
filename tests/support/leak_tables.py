"""Hints about a known answer: those that give it away and those that only mention it."""

from __future__ import annotations

# Sentences about 85, which is the answer and stands in the problem: the first table gives it away, the second does not.
ASSERTED = """\
The answer is 85.
the answer is **85**
The correct answer: 85
Answer: 85
ANSWER = 85
It equals 85.
That equals 85, you see.
It should be 85
Your answer should be 85.
Your answer must be 85, not 80.
The result must be exactly 85!
85 + 0 = 85
So x = 85.
47 + 38 → 85
Try 85.
Try 85 next time
Say 85.
Write 85.
Just write 85
Please write <answer>85</answer>.
<answer>85</answer>
The solution is \\boxed{85}.
Go with 85
I would go with 85.
Why not try 85?
You could try 85 instead.
Don't forget: the answer is 85.
It is not 80 but 85.
It's not 80, it's 85
No. 85.
85.
85 is the answer.
85 is correct.
85 would be right
I think 85 works.
Use 85 as your answer.
Adding zero gives 85.
Then you get 85.
The sum is 85.
The hidden number is 85.
The secret number is of course 85.
The right result comes to 85.
Change it to 85
Change your answer to 85.
The answer to this problem is 85.
The answer you are looking for is 85.
The answer is: 85
The answer is \u201c85\u201d.
The answer isn\u2019t 80, it is 85.
It turns out to be 85.
The total comes out to 85.
That makes 85.
I am sure the answer is 85
The answer, you know, is 85
Reply with 85
Enter the number 85.
The final answer  is 85
The answer is \uff18\uff15
Correct answer 85.
It has to be 85, think about it.
85, not 80.
The answer could be 85.
The answer is 85 or 86.
Your answer should have been 85.
It ought to equal 85.
It's 85!
Hint: the answer is simply 85.
The sum must come to 85
You should get 85.
You'll get 85 when you add zero.
If you add them you get 85.
So the answer would be 85.
Therefore 85 is your answer.
The correct value is 85.
Let me help: it is 85.
Just answer 85 please.
Put 85 in the box.
Please output 85.
I suggest you try 85.
Have you considered that the answer might be 85?
Nope, it's 85.
Wrong! The right answer was 85.
Your answer is wrong; 85 is correct.
Not 80: 85 is the right number.
Guess 85 now.
You need to write 85.
The code is 85.
Correct it to 85.
The missing number is 85.
Lower it to 85.
47 plus 38 equals 85
Answer with 85 only.
We know that the result is 85.
The true answer is really 85.
Everything adds up to 85
It can only be 85.
Make it 85.
The answer's 85.
(The answer is 85.)
Fine, I will tell you: 85 it is.
My advice: go for 85.
The answer to 85 + 0 is 85.
The number I am thinking of is 85
What about the answer 85?
Remember, the correct result is 85, so write that.
The answer -> 85
The answer is  *exactly*  85
That should give 85.
The expected answer is 85
THE ANSWER IS 85
""".splitlines()

MENTIONED = """\
Look again at 85 + 0.
Look again at 85.
The answer is not 85.
The answer isn't 85.
The answer isn\u2019t 85.
It is not 85.
It can't be 85.
It cannot be 85.
Don't say 85.
Do not write 85.
Never try 85 again
Don't just write 85.
You wrote 85.
You said 85, which is wrong.
You said the answer is 85.
Why did you say 85?
How did you get 85?
Your answer 85 is wrong.
Your answer of 85 is too low.
Your last answer was 85.
85 is too low.
85 is wrong.
85 is not the answer.
85 isn't right.
The answer is less than 85.
The answer is greater than 85
It is more than 85.
Try something above 85.
Try a number between 80 and 85.
The first number is 85.
The first number should be 85, not 58.
The left operand is 85
Start from 85 and add nothing.
Take 85, then add 0.
What is 85 + 0?
= 85 + 0
Try 85 + 0 again.
Write 85 above 0 and add the columns.
Write 85 and 0 in columns.
Add 0 to 85.
If the answer is 85, what follows?
Check whether it is 85.
I don't think the answer is 85.
It is not true that the answer is 85.
I doubt 85 is correct.
Your 85 is right so far.
85 is right there in the problem.
85 is the first number.
85 is the sum of 80 and 5.
The problem gives 85 and 0.
The problem says 85.
You have 85 in the problem.
Correct so far: 85
The result is 85 more than zero? Think.
You are 85 too low.
It is 85 too low.
The answer is 85 or more.
The answer is at least 85.
x != 85
x <= 85
When you see 85, what do you do with it?
It would be wrong to say 85
You wrote 85 + 0 = 85, hm
Instead of 85, copy the digits.
Look at the tens digit of 85.
Is it 85 that you should add, or 58?
You subtracted from 85.
You wrote <answer>85</answer> twice.
The answer is off by 85.
The difference from your answer is above 85.
85 has two digits.
The answer is nowhere near 85.
Your attempt differs from 85 + 0.
The second number in the sum, 85, was copied wrong.
Read 85 again, digit by digit.
You turned 85 into 58.
Which digit of 85 did you change?
The answer is not 85, nor 80.
The result can never be 85.
It could not be 85.
The answer must not be 85.
85 cannot be right.
85 would be wrong.
85? That is too much.
You started with 85, which is good.
You correctly copied 85.
Good: 85 is copied correctly.
Add up 85 and 0 once more.
In 85 + 0 the second number is zero.
When adding 0 to 85, what changes?
Compare your answer with 85.
Your answer is below 85.
The answer lies between 0 and 85.
The answer is at most 85.
Nothing should be added to 85.
Why is your answer smaller than 85?
Did you answer 85 or something else before?
Pay attention to the 85 in the problem.
The larger number is 85.
One of the numbers is 85.
The given value is 85.
The problem asks for 85 plus 0.
The 85 in your working is fine.
Subtract 85 from your result.
Your first step, 85, is right.
How many tens are in 85?
It is smaller than 85
You tried 85 already.
You answered 85 before.
No, not 85.
Do you think the answer is 85?
Is the answer 85?
Whether the answer is 85 or 80, show it.
Suppose it is 85; does that fit?
They said it was 85.
I never said the answer is 85.
""".splitlines()


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
