"""One file for many experiments: a configuration with a `matrix` of axes, each a set of named changes.

    matrix:
      environment:
        codes: {environment: secret_code}
        numbers: {environment: guess_number}
      method:
        rl2f: {}
        rlvr: {stages.1.method: rlvr}

A cell takes one change of every axis, in their order, and is called by their names: `codes-rl2f`.  Keys are dotted
paths, as in overrides.  What stands beside `matrix` is shared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from rl2f_core.errors import ConfigError
from rl2f_core.overrides import put

KEY = "matrix"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


def is_matrix(data: Any) -> bool:
    """Whether the data of a configuration file stand for several experiments."""
    return isinstance(data, Mapping) and KEY in data


def cells(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configurations of a matrix by name, in order, the last axis fastest; each is named `<name>-<cell>`.

    Raises `ConfigError` where the axes are no mappings of names to changes, or a change leads nowhere.
    """
    axes = data[KEY]
    if not isinstance(axes, Mapping) or not axes:
        raise ConfigError("`matrix` holds no axes.", value=axes, fix="Write matrix: {axis: {name: {key: value}}}.")
    for axis, options in axes.items():
        if not isinstance(options, Mapping) or not options:
            raise ConfigError(f"The axis {axis!r} of the matrix names no changes.", value=options,
                              fix="Write it as {name: {key: value}}; {} changes nothing.")  # fmt: skip
        for name, changes in options.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(f"A name on the axis {axis!r} of the matrix has other signs than letters, digits, "
                                  "_ and full stops.", value=name)  # fmt: skip
            if not isinstance(changes, Mapping):
                raise ConfigError(f"The change {name!r} on the axis {axis!r} is no mapping.", value=changes)
    shared = {key: value for key, value in data.items() if key != KEY}
    found = {}
    for chosen in product(*(options.items() for options in axes.values())):
        made: Any = shared
        for _, changes in chosen:
            for path, value in changes.items():
                made = put(made, str(path), value)
        name = "-".join(name for name, _ in chosen)
        found[name] = {**made, "name": f"{shared.get('name', 'run')}-{name}"}
    return found


def cell(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One configuration of a matrix. Raises `ConfigError` naming those there are."""
    held = cells(data)
    if name not in held:
        raise ConfigError("The matrix has no such cell.", value=name, known=list(held))
    return held[name]
