"""Sets of candidate answers, counted without listing them where parts of the answer are independent.

A *candidate* has a value for each named part of an answer, e.g. `{"1": "K", "2": "Q"}` for the code K Q.  A *box*
allows a set of values for some parts and any value for the others; with a set for every part, it contains the product
of their sizes.  A *region* is a union of disjoint boxes.  The candidates of a problem are a region whose boxes name
every part; a statement about the answer is a region that may leave parts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from math import prod

PartValue = str | int
Candidate = Mapping[str, PartValue]
"""An answer: value by part."""
Box = Mapping[str, frozenset[PartValue]]
"""Allowed values by part; a part that is absent may have any value."""
Region = tuple[Box, ...]
"""Disjoint boxes: a candidate is in the region if it is in one of them."""
MAX_LISTED = 20_000
"""Numbers in a set of candidates; larger sets are not counted."""


def one_of(part: str, values: Iterable[PartValue]) -> Region:
    """Return the statement that a part has one of `values`."""
    return ({part: frozenset(values)},)


def intersect(region: Region, *others: Region) -> Region:
    """Return the answers of `region` that are also in all `others`, as disjoint boxes."""
    return reduce(_intersect_two, others, region)


def _intersect_two(region: Region, other: Region) -> Region:
    common = (_common_box(box, condition) for box in region for condition in other)
    return tuple(box for box in common if box is not None)


def _common_box(box: Box, condition: Box) -> Box | None:
    """Return the intersection of two boxes, `box` itself if it is in `condition`; None if it is empty."""
    narrowed = {}
    for part, allowed in condition.items():
        values = box[part] & allowed if part in box else allowed
        if not values:
            return None
        if part not in box or len(values) < len(box[part]):
            narrowed[part] = values
    return {**box, **narrowed} if narrowed else box


def contains(region: Region, answer: Candidate) -> bool:
    """Return whether an answer is in the region; an answer without a part that a box names is not in the box."""
    return any(all(answer.get(part) in allowed for part, allowed in box.items()) for box in region)


def count(region: Region, excluded: Iterable[Candidate] = ()) -> int:
    """Return the number of answers in a region whose boxes name every part, without the `excluded` ones."""
    distinct: list[Candidate] = []
    for answer in excluded:
        if answer not in distinct and contains(region, answer):
            distinct.append(answer)
    return sum(prod(map(len, box.values())) for box in region) - len(distinct)
