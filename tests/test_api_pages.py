"""The API pages list exactly the exported names; the tables of settings are of their fields."""

import ast
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
PAGES = ROOT / "docs" / "pages"
API_PAGES = sorted((PAGES / "api").glob("*.md"))
COMMAND_LINE = "cli"  # its page lists commands, no Python names
_spec = importlib.util.spec_from_file_location(
    "settings_tables", PAGES.parent / "settings_tables.py"
)
settings_tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(settings_tables)


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


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_tables_of_settings_are_what_their_fields_say(page):
    text = page.read_text("utf-8")
    assert settings_tables.with_tables(text, page.name) == text, "python docs/settings_tables.py"


def test_every_section_of_a_recipe_has_its_table():
    page = (PAGES / "runs.md").read_text("utf-8")
    assert re.findall(r"<!-- settings: (\w+) -->", page) == [
        "data",
        "clean",
        "vocabulary",
        "training",
    ]
