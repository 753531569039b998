"""Words of the concepts that statements about parts use, and their tokens in a sentence.

A phrase is a sequence of words. `*` at the end of a word matches any ending, `a|b` either word, `(a)` a word or
nothing, and `_` any word. The phrases of a sentence are found by their first word, so that a sentence costs a few
look-ups per word and the number of phrases does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

CONCEPTS: dict[str, str] = {
    "suppose": """
        if, some of|are, any|either of, several (of), a few of, most of, at least|most, partly, should be
        false|true, suppos*, assum*, pretend*, whether, would be, would have, would then, could, might, may be,
        maybe, perhaps, unless, what about, imagin*, when, try, test, cannot|can't both, either, say for a moment,
        let's say, hypothes*, what would, what follows, were to, as though, in case, provided
        """,
    "report": """
        you (have|had|just|also|even|all|now|first|then|both) (already|just|first) said| say| wrote| write| written|
        claim| claimed| got| made| make| put| list| listed| call| called| name| named| have| had| answer| answered|
        guess| guessed| think| thought| treat| treated| gave| give| given| chose| pick| picked| label| labeled|
        labelled| insult| insulted| accuse| accused| trust| trusted| believed| believe| typed| entered| tried|
        submitted| proposed| marked| painted| assume| assumed, you've|you'd (just|already) got| put| had| written|
        given| made| called| said| guessed| typed| named| labelled| labeled| listed, your answer| guess| list| code|
        solution| try| attempt| version| sheet says| lists| has| claims| had| calls| reads| contains| shows,
        according to, speak|speaks (so) well of, says, said, claim, claims, claimed, calls, called, remark*, tells
        you, tell you that, insist*, swears, vouch*, accus*, testif*, asserts, declares, mentions, talks about
        """,
    "except": """
        except*, but for, apart from, aside from, other than, besides, save for, save, bar, barring, everyone|
        everybody| everything| all| nobody| nothing| none| anybody| anyone| anything but, no 1 but, no one but,
        excluding, leaving out, with the exception of, minus
        """,
    "nothing_else": """
        nothing|nobody|none|no-one|nowhere|no else, no 1|one else, nothing more, that's all, that is all, that's it,
        that is it, nothing other, that alone, no other*, alone, on its|his|her|their own, leave all else, that's
        that, apart|aside from that|this, besides that|this, other than that|this, otherwise
        spot|fine|perfect|correct|good|flawless|right, not another*, no further*, that and only that
        """,
    "noise": """
        hold it|them up|to, (in) other words|hand|day|things, the other way, it
        has|contains|holds|uses|reads|begins|starts|ends, keep it up, that's|that all|it i|you|we|i'll|i'm|you'll,
        right|all|just now|away|before|after, good luck| idea| thinking| try| effort| job| work| question| news|
        start| guess| going, well done, fine print, try (it|that) again, keep going| trying| at| in| an| your| calm|
        it| on| track| thinking| looking, keep _ mind, great job|start|work|effort|progress, leave it there|to, nice
        try|one|work|start, work out|through|on|from|your|with|back|it, stay calm|with|focused|tuned|sharp, check
        the|your|it|each|every|whether|if|again|what, let me|us|'s, come on, hold on (a|tight), hit me, change of,
        take it easy, turn to|left|right|back|out|it|your|down|up, in turn, (it's) your turn, turn the page, (you)
        turned to|left|right, stand on|at|there|for|by, kept track, match up|point, agree that|with me, in the right
        order|direction|track, go right|left, right hand|side|track|direction|to|until|till|edge|wall, to the
        right|left, right-hand
        """,
    "others": """
        (all|any|every) (of) (the|these|those|your|my) (#) other|others, (the|your|all) (#) remainder, the rest,
        rest, your rest, the|your (#) remaining (letter| letters| person| people| place| places| seat| seats| ones|
        row| rows| digit| digits| cell| cells| villagers| slots| spots| positions| entries| lines| two| three),
        (the) (#) remaining (#), everyone| everybody| everything| anyone| anybody| anything| all else, otherwise,
        elsewhere, whoever|whatever|what is|remains|left, everything|everyone|all|anything around|after|before
        it|them|that, the surroundings, its neighbours|neighbors|companions|colleagues, (#) others
        """,
    "all": """
        all, every, everyone, everybody, everything, each, both, the lot, the whole lot, whole lot, any, anyone,
        anybody, anything, the whole bunch| crowd| company| crew| group| party| gang| village| code| thing| row|
        island| list, altogether
        """,
    "none": "nobody, no one, no-one, no 1, nothing, none, not 1, not one, not a single, not a soul, zilch, zero of",
    "not": """
        not, isnt, arent, dont, doesnt, didnt, wasnt, werent, wont, cannot, cant, never, no, neither, nor, without,
        nowhere, hardly, lack*, forget, ban, banned, banish*, absent*, missing from, no part, stay* away|out|home,
        leave out, drop, exclud*, eliminat*, stranger, nope, nah, rule* out, ruled out, cross* out|off, strike
        out|off, struck out|off, scratch*, discard*, reject*, throw away|out, thrown away|out, toss out, off the
        board|table|list|menu, out of the question|game|picture|running, is|are out, goes out, out for, has an
        alibi, have an alibi, do* away with, get rid of, rid of, nothing to do with, plays no, sits this, sits out,
        unused, avoid*, refus*, barely, far from, anything but, gone, impossible, unwelcome, kick* out, isn't|ain't,
        aint, cut out, useless, superfluous, retire*, dismiss*, nada, skip*, ignore*, take out, take off, remove*,
        omit*, void of, free of, devoid of, zero, no room for, no place for, no business, nil
        """,
    "swap": """
        swap*, confus*, one another, another's, exchang*, trad*, interchang*,
        change|changed|changing|switch|switched|switching (the|their) seats| places| roles| positions| hats| spots|
        sides| chairs| beds| rooms| labels| tags, switch* (the) two|2|last|first, transpos*, mix* up, mixup, mix-up,
        cross*, each other, each other's, the other's, eachother, switcheroo, in _
        place|seat|badge|coat|hat|spot|chair|shoes|tag, wearing, (takes) _
        badge|coat|hat|role|shoes|label|chair|tag, trade places, in the wrong order, out of order, jumbled, back to
        front, trade|trades theirs, reverse order, opposite order, permut*, change over, vice versa, cross over,
        invert the order, musical chairs, reverse the order, flip the order
        """,
    "right": """
        as|like you said|wrote|typed, exactly|just|precisely what|as|like you said| wrote| typed| had| have| put|
        thought| called| guessed, right, rightly, correct, correctly, fine, good, ok, okay, perfect*, sound,
        accurate*, keep, keeps, keeping, kept, stay*, remain, remains, leave, hold on|fast|onto|still, hang on|onto,
        untouch*, as it|they should|ought, where it|they|he|she belongs|belong, at home, in its|their|his|her|the
        (right|correct|proper|own) place| places| seat| seats| spot| spots| position| positions| slot, accept*,
        settle*, safe, spot on, spot-on, bang on, dead on, lovely, yes, nail*, match*, true, unchang*, impeccabl*,
        solid, stand*, flawless*, proud of, belong*, well done|judged|placed|chosen|read, do|does|don't|doesn't|not
        change|touch|move|alter|budge, innocent, lock*, in the bag, winner*, taken, sorted, gold, fit|fits|fitting,
        work|works, tick, ticks, ticked, slap*, on the money, bullseye, bull's-eye, on target, stick, sticks,
        spotless*, clean, sign, signed, sealed, brilliant*, excellent*, great, superb*, beautiful*, gorgeous,
        proper*, legit*, valid*, check, checks out, confirm*, approv*, agree*, bless*, applau*, golden, as is, as
        it|they is|are|was|were, as you had|have|left (it|them), certif*, dead right, in order, in the clear, home,
        at rest, anchored, nailed, fixed in, secured, in place, intact, holds, hold, wonderful*, splendid*, marvel*,
        excellent, super, neat*, fabulous, ace, top-notch, pristine, good to go, all set, got it|them right, hit,
        hits, score*, green, greenlit, thumbs up, full marks, unscathed, verif*, faithful*, faultless*, error-free,
        deserve* to stay, passes, pass, survive*, acceptable, please|pleases me, happy with, satisf*, content with,
        fond of, loved, salute, credit, praise, well-placed, justif*, warrant*, just so, immaculate*, peachy, dandy,
        sweet, swell, on point, bingo, yep, yup, yeah, aye, already have, already got, already know,
        congratulations, done, finished, undisputed, no need to change|touch|move
        """,
    "wrong": """
        wrong*, incorrect*, mistak*, false*, error*, bad, badly, off, flip*, turn, turned, turning, chang*, toggl*,
        invert*, switch|switched|switches, (the) other way (round|around), need* fixing| changing| work| replacing|
        correcting| attention| correction, fix, slip*, misjudg*, mislabel*, misread*, spoil*, culprit, (the)
        opposite, contrary, trouble*, must|to go, out of place, sinner, impostor, imposter, injustice, unfair*,
        wronged, kinder, harsher, touch, lie|lies in your, misplac*, busted, did dirty, pack its|his|her bags,
        booed, differ|differs in, to think about, to look at again, booted, evicted, go|look over again, uncertain,
        mess*, miss, missed, misses, missing, misfire*, blunder*, goof*, fault*, flaw*, blemish*, blot*, blooper*,
        botch*, bungl*, fumbl*, stumbl*, trip*, oops, amiss, awry, astray, broken, broke, dud, duds, fail*, flunk*,
        reverse, reversed, revers*, reconsider*, revis*, correct this|that|it|her|him, change your mind, upside
        down, backwards, inaccura*, invalid*, unsound, untenable, nonsense, rubbish, garbage, trash, mistreat*,
        misstep*, misplace*, sticking point, stain*, smudge*, sore thumb, weak spot|link|point, problem*, issue*,
        quarrel*, complain*, object*, argu*, beef, qualm*, doubt*, gripe*, snag*, hiccup*, glitch*, bug, bugs,
        foul*, offend*, red, redo, rethink, repair*, amend*, overturn*, overrul*, revoke*, retract*, undo, let*
        down, lets you down, poor, sour, rotten, misguided, misconstru*, misassign*, misclassif*, misidentif*,
        mischaracter*, mistaken*, mixed, muddl*, swapped out, replace*, substitut*, too harsh| kind| soft| lenient|
        generous| hard| nice| gullible| strict| trusting| suspicious| severe| charitable| mean| tough
        (on|to|with|about), fooled, fool|fools you, tricked you, traitor*, intruder*, outsider*, deserves better,
        another label|letter|role, opposed, other role| label| type| kind| category| camp| team| column| stamp,
        incorrectly, typo, typos, erroneous*
        """,
    "same": "the same, same, equal*, identical*, twin, twins, alike, agree, match each other, likewise identical",
    "different": "different*, differ, differs, opposites, unlike, disagree*, not the same, opposed, unequal",
    "them": "1|one|any|some|# of them|those|these, among them|those, in it, of that|this kind|sort",
    "pronoun": """
        it, it's, its, he, he's, she, she's, they, they're, him, her, them, that 1|one, this 1|one, these (2), those
        (2), the two, the pair, the former, the latter, these people, both of them, that|this person| letter| place|
        row| line| digit| cell| fellow| lady| guy
        """,
    "also": """
        too, also, as well, likewise, ditto, same for|with|goes|story|applies, so is|does|are|do|was|did, and so
        """,
    "only": """
        only, just, exactly, precisely, a single, single, sole, solely, lone, merely, solitary, purely, exclusively,
        singular, nothing but, no more than, one and only, simply
        """,
    "loner": """
        loner, singleton, odd one|1 out, by itself, by himself, unique, appears|occurs|used once, only 1|one of its
        kind
        """,
    "each": "respectively, in that order, in this order, in order, in turn",
}
"""Concepts with their phrases; of phrases at one place the longest counts, then the first concept."""
WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*|\d+")


class Word(NamedTuple):
    """A word or number of a sentence in lower case."""

    start: int
    end: int
    text: str


class PhraseSpan(NamedTuple):
    """A phrase of a sentence; words `first` to `last` − 1."""

    symbol: str
    first: int
    last: int


Rest = tuple[tuple[frozenset[str], tuple[str, ...]], ...]
"""Alternatives of each word after the first one: whole words, and beginnings of words."""


@lru_cache(4096)
def words_of(sentence: str) -> tuple[Word, ...]:
    """Return the words of a sentence."""
    return tuple(Word(*match.span(), match[0].lower()) for match in WORD.finditer(sentence))


class Phrases:
    """Phrases with a symbol each, found by their first word.

    Args:
        concepts: Phrases by symbol, separated by commas.
    """

    def __init__(self, concepts: Mapping[str, str]) -> None:
        self._whole: dict[str, list[tuple[int, Rest, str]]] = {}
        self._stems: dict[str, list[tuple[int, Rest, str]]] = {}
        rank = 0
        for symbol, phrases in concepts.items():
            for phrase in " ".join(phrases.split()).replace("| ", "|").split(","):
                rank += 1
                for first, *rest in _variants(phrase.split()):
                    entry = (rank, tuple(map(_alternatives, rest)), symbol)
                    for word in first.split("|"):
                        where, key = (self._stems, word[:-1]) if word.endswith("*") else (self._whole, word)
                        where.setdefault(key, []).append(entry)
        self._known: dict[tuple[str, str], tuple[tuple[Rest, str], ...]] = {}

    def entries(self, word: str, following: str) -> tuple[tuple[Rest, str], ...]:
        """Return the rests of the phrases that may begin with two words, the longest first."""
        known = self._known.get((word, following))
        if known is None:
            found = [*self._whole.get(word, ()), *(self._whole.get("#", ()) if word.isdigit() else ())]
            for end in range(2, len(word) + 1):
                found += self._stems.get(word[:end], ())
            if word.endswith("n't"):
                found += self._whole.get("not", ())
            found.sort(key=lambda entry: (-len(entry[1]), entry[0]))
            known = tuple((rest, symbol) for _, rest, symbol in found if not rest or _fits(following, *rest[0]))
            if len(self._known) < 50_000:
                self._known[word, following] = known
        return known

    def find(self, words: tuple[Word, ...]) -> Iterator[PhraseSpan]:
        """Yield the phrases of a sentence from left to right, without overlaps."""
        i, count, known = 0, len(words), self._known
        while i < count:
            pair = words[i].text, words[i + 1].text if i + 1 < count else ""
            entries = known.get(pair)
            for rest, symbol in self.entries(*pair) if entries is None else entries:
                end = i + 1 + len(rest)
                if end <= count and all(_fits(w.text, *r) for w, r in zip(words[i + 2 : end], rest[1:], strict=True)):
                    yield PhraseSpan(symbol, i, end)
                    i = end - 1
                    break
            i += 1


def _alternatives(word: str) -> tuple[frozenset[str], tuple[str, ...]]:
    words = word.split("|")
    return frozenset(words), tuple(each[:-1] for each in words if each.endswith("*"))


def _fits(word: str, allowed: frozenset[str], beginnings: tuple[str, ...]) -> bool:
    if word in allowed or "_" in allowed or ("#" in allowed and word.isdigit()):
        return True
    return bool(beginnings) and word.startswith(beginnings)


def _variants(words: list[str]) -> Iterator[list[str]]:
    """Yield a phrase with and without its optional words."""
    optional = [("", word[1:-1]) if word.startswith("(") else (word,) for word in words]
    for chosen in product(*optional):
        yield [word for word in chosen if word]


LEXICON = Phrases(CONCEPTS)
