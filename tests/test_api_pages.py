"""The API pages list exactly the exported names; the recipe tables list exactly the keys."""

import ast
import dataclasses
import json
import pathlib
import re

import pytest

from keras_transformer.runs import recipe

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
PAGES = ROOT / "docs" / "pages"
API_PAGES = sorted((PAGES / "api").glob("*.md"))
COMMAND_LINE = "cli"  # its page lists commands, no Python names


def exports_of(home):
    """{name: the module it is imported from} of a folder's `.pyi`, or of `layers/__init__.py`."""
    stub = home / "__init__.pyi"
    tree = ast.parse((stub if stub.is_file() else home / "__init__.py").read_text("utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        alias.asname or alias.name: node.module
        for node in imports
        for alias in node.names
        if alias.asname or home.name == "layers"
    }


def documented_names(home):
    """The full names that the page of a folder or a file must list."""
    prefix = ".".join(home.relative_to(ROOT).with_suffix("").parts)
    if home.is_file():
        for node in ast.parse(home.read_text("utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
                yield f"{prefix}.{node.name}"
        return
    shortest = exports_of(PACKAGE)
    for name, module in exports_of(home).items():
        if module is None:  # a module is exported: its public functions are documented
            yield from documented_names(home / f"{name}.py")
        else:
            yield f"{PACKAGE.name}.{name}" if name in shortest else f"{prefix}.{name}"


@pytest.mark.parametrize("page", API_PAGES, ids=lambda page: page.stem)
def test_page_lists_exactly_the_exported_names(page):
    listed = re.findall(r"^(?:### )?::: ([\w.]+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    if page.stem == COMMAND_LINE:
        assert not listed
        return
    folder = PACKAGE / page.stem
    home = folder if folder.is_dir() else folder.with_suffix(".py")
    assert sorted(listed) == sorted(documented_names(home))


def test_every_name_of_the_package_is_exported_by_its_folder():
    for name, module in exports_of(PACKAGE).items():
        assert module is None or name in exports_of(PACKAGE / module)


def test_every_exporting_folder_has_a_page_in_the_navigation():
    exporting = {name for name, module in exports_of(PACKAGE).items() if module is None}
    assert {page.stem for page in API_PAGES} == {*exporting, COMMAND_LINE}
    navigation = (ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    assert sorted(re.findall(r"api/(\w+)\.md", navigation)) == [page.stem for page in API_PAGES]


@pytest.mark.parametrize("section", ["data", "vocabulary", "training"])
def test_table_has_every_recipe_key_with_its_default(section):
    page = (PAGES / "runs.md").read_text("utf-8")
    table = page.partition(f"\n### {section}\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    rows = [row for row in rows if row and row[0].startswith("`")]
    fields = dataclasses.fields(getattr(recipe, f"{section.capitalize()}Settings"))
    # The default as YAML: 1.0, bpe, true, null.
    defaults = [f.default for f in fields if f.default is not dataclasses.MISSING]
    defaults = [json.dumps(default).strip('"') for default in defaults]
    assert [row[0].strip("`") for row in rows] == [field.name for field in fields]
    assert [row[2].strip("`") for row in rows if row[2] != "required"] == defaults
    if section == "training":
        changeable = {row[0].strip("`") for row in rows if row[-1] == "yes"}
        assert changeable == set(recipe.RESUMABLE)
