"""What MkDocs does beside its usual work: the readme, the command line, links to the sources.

Pages link to any file of the repository by its relative path, which works wherever the repository
is browsed. In the site such a link goes to the page about that file, or becomes plain text.
"""

import os
import re
from pathlib import Path, PurePosixPath

import typer.cli
from mkdocs.structure.files import File

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = PurePosixPath("docs/pages")
# Files of the repository that are pages of the site.
INCLUDED = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Modules of the package whose page has another name than theirs.
PAGE_OF_MODULE = dict.fromkeys(("recipe", "recipes", "run_folder", "settings"), "config")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def on_files(files, config):
    """Adds the pages that are files of the repository, or made from code."""
    for name, page in INCLUDED.items():
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fills in the command line, and mends links that leave the pages."""
    uri = page.file.src_uri
    if uri == "api/cli.md":
        markdown += command_line()
    home = next((PurePosixPath(name).parent for name, at in INCLUDED.items() if at == uri), None)
    folder = PAGES / PurePosixPath(uri).parent if home is None else home
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part[:3] == "```" else LINK.sub(lambda m: mended(m, folder, uri), part)
        for part in parts
    )


def command_line():
    """The commands and their options, as `keras-transformer --help` tells them."""
    from keras_transformer.cli import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="keras-transformer")
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="keras-transformer")
    # Command by command; what comes before them lists them, cut off after some words.
    return "\n" + escaped(text[text.index("\n## ") :])


def escaped(markdown):
    """Without HTML: `<recipe>` in a help text stands for itself."""
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part[:1] == "`" else part.replace("<", "&lt;") for part in parts)


def mended(match, folder, uri):
    """The link, the same link as seen from the site, or its text alone."""
    text, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    path, _, anchor = target.partition("#")
    path = PurePosixPath(os.path.normpath(folder / path))
    page = page_of(path)
    if page is None:
        return text
    page = os.path.relpath(page, PurePosixPath(uri).parent)
    return f"[{text}]({page}{'#' * bool(anchor)}{anchor})"


def page_of(path):
    """The page about a file of the repository, if there is one."""
    if str(path) in INCLUDED:
        return INCLUDED[str(path)]
    if path == PAGES:
        return "index.md"
    if path.is_relative_to(PAGES):
        return str(path.relative_to(PAGES))
    if path.parts[0] != "keras_transformer" or len(path.parts) < 2:
        return None
    module = path.parts[1].removesuffix(".py")
    page = f"api/{PAGE_OF_MODULE.get(module, module)}.md"
    return page if (DOCS / "pages" / page).is_file() else None
