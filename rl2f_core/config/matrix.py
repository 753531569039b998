"""Matrix of experiments in one file: axes of named changes to a shared configuration.

    matrix:
      environment:
        codes: {environment: secret_code}
        numbers: {environment: guess_number}
      method:
        rl2f: {}
        rlvr: {stages.1.method: rlvr}

A cell combines one change of each axis; its name joins theirs: `codes-rl2f`. Keys are dotted paths, as in overrides.
Settings of single cells follow under `cells`, and apply last:

    cells:
      codes-rl2f: {stages.1.steps: 20}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product

from rl2f_core.config.overrides import set_nested
from rl2f_core.errors import ConfigError
from rl2f_core.types import JsonObject

KEY, SINGLE = "matrix", "cells"
STUDY_KEYS = ("seeds", "hypotheses")
"""Keys of a study (`evaluation/study/spec.py`), which belong to no cell."""
MAX_CELLS = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


def is_matrix(data: object) -> bool:
    """Whether a configuration file contains a matrix."""
    return isinstance(data, Mapping) and KEY in data


def cells(data: JsonObject) -> dict[str, JsonObject]:
    """Return the configurations of a matrix by cell name, the last axis fastest; each is named `<name>-<cell>`.

    Raises `ConfigError` if an axis is invalid or a change has an invalid path.
    """
    axes = data[KEY]
    if not isinstance(axes, Mapping) or not axes:
        raise ConfigError("`matrix` contains no axes.", value=axes, fix="Write matrix: {axis: {name: {key: value}}}.")
    for axis, options in axes.items():
        if not isinstance(options, Mapping) or not options:
            raise ConfigError(f"The axis {axis!r} of the matrix names no changes.", value=options,
                              fix="Write it as {name: {key: value}}; {} changes nothing.")  # fmt: skip
        for name, changes in options.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"A name on the axis {axis!r} of the matrix has other characters than letters, digits, _ and .",
                    value=name,
                )
            if not isinstance(changes, Mapping):
                raise ConfigError(f"The change {name!r} on the axis {axis!r} is not a mapping.", value=changes)
    if (count := math.prod(map(len, axes.values()))) > MAX_CELLS:
        raise ConfigError(f"`matrix` has more than {MAX_CELLS} cells.", value=count, fix="Split it into several files.")
    shared = {key: value for key, value in data.items() if key not in (KEY, SINGLE, *STUDY_KEYS)}
    single = data.get(SINGLE, {})
    if not isinstance(single, Mapping) or not all(isinstance(changes, Mapping) for changes in single.values()):
        raise ConfigError("`cells` is not a mapping of cells to changes.", value=single)
    configs = {}
    for chosen in product(*(options.items() for options in axes.values())):
        config = shared
        for _, changes in chosen:
            for path, value in changes.items():
                config = set_nested(config, str(path), value)
        name = "-".join(name for name, _ in chosen)
        for path, value in single.get(name, {}).items():
            config = set_nested(config, str(path), value)
        configs[name] = {**config, "name": f"{shared.get('name', 'run')}-{name}"}
    if unknown := sorted(set(single) - set(configs)):
        raise ConfigError("`cells` names cells that the matrix does not have.", value=unknown, known=configs)
    return configs
