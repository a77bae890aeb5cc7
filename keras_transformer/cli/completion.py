"""Completion of arguments in a shell: names of recipes and folders of runs.

An empty list makes the shell complete file names.
"""

import glob
from pathlib import Path


def recipe_names(incomplete: str) -> list[str]:
    """Returns the packaged recipes and the YAML files that begin with some text."""
    from keras_transformer.runs.recipe import packaged_recipes

    packaged = [name for name in packaged_recipes() if name.startswith(incomplete)]
    return packaged + sorted(glob.glob(f"{glob.escape(incomplete)}*.yaml"))


def run_folders(incomplete: str) -> list[str]:
    """Returns the folders of runs that begin with some text, also one folder below it."""
    for pattern in ("*", "*/*"):
        recipes = glob.glob(f"{glob.escape(incomplete)}{pattern}/config.yaml")
        if recipes:
            return sorted(str(Path(path).parent) for path in recipes)
    return []
