"""MkDocs hooks: adds readme, notebooks and command line as pages, and rewrites links to sources.

Pages link to files of the repository by relative path, which works when the repository is browsed.
In the site such a link leads to the page about that file, or becomes plain text.
"""

import base64
import json
import os
import re
from pathlib import Path, PurePosixPath

import typer.cli
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = PurePosixPath("docs/pages")
# Files outside docs/pages that are pages of the site.
INCLUDED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INCLUDED |= {f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def on_files(files, config):
    """Adds the files of `INCLUDED` as pages."""
    for name, page in INCLUDED.items():
        text = (ROOT / name).read_text("utf-8")
        if name.endswith(".ipynb"):
            text, pictures = notebook_page(json.loads(text), Path(name).stem)
            for path, png in pictures.items():
                files.append(File.generated(config, f"notebooks/{path}", content=png))
        files.append(File.generated(config, page, content=text))
    return files


def notebook_page(notebook, stem):
    """Returns a notebook with its outputs as Markdown, and its pictures: path -> PNG."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Jupyter's anchors keep capitals and punctuation.
            parts.append(re.sub(r"\(#(.+?)\)", lambda m: f"(#{slugify(m[1], '-')})", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for number, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                path = f"{stem}/{cell['id']}-{number}.png"
                pictures[path] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Picture that the code above draws]({path})")
            elif text := "".join(output.get("text") or data.get("text/plain", "")):
                parts.append(f"```text\n{ANSI_COLOUR.sub('', text).rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown, page, config, files):
    """Adds the commands to their page, and rewrites links that leave the pages."""
    uri = page.file.src_uri
    if uri == "api/cli.md":
        markdown += command_line()
    home = next((PurePosixPath(name).parent for name, at in INCLUDED.items() if at == uri), None)
    folder = PAGES / PurePosixPath(uri).parent if home is None else home
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part[:3] == "```" else LINK.sub(lambda m: rewritten(m, folder, uri), part)
        for part in parts
    )


def on_page_content(html, page, config, files):
    """Marks names with hyphens in tables: the style sheet does not break them."""
    return re.sub(
        r"<td.*?</td>",
        lambda cell: re.sub(r"<code>(?=--\w|[\w-]+-\w+</code>)", '<code class="option">', cell[0]),
        html,
        flags=re.DOTALL,
    )


def command_line():
    """Returns the commands and their options, from `keras-transformer --help`, as Markdown."""
    from keras_transformer.cli import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="keras-transformer")
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="keras-transformer")
    # Drop the overview before the first command: its help texts are truncated.
    return "\n" + escaped(text[text.index("\n## ") :])


def escaped(markdown):
    """Escapes `<`, so that `<recipe>` in a help text is not read as HTML."""
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part[:1] == "`" else part.replace("<", "&lt;") for part in parts)


def rewritten(match, folder, uri):
    """Returns a link that works in the site, or only its text if the site has no such page."""
    text, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    path, hash_sign, anchor = target.partition("#")
    path = PurePosixPath(os.path.normpath(folder / path))
    page = page_of(path)
    if page is None:
        return text
    page = os.path.relpath(page, PurePosixPath(uri).parent)
    return f"[{text}]({page}{hash_sign}{anchor})"


def page_of(path):
    """Returns the page about a file of the repository, or `None`."""
    if str(path) in INCLUDED:
        return INCLUDED[str(path)]
    if path == PAGES:
        return "index.md"
    if path.parts[0] == "notebooks" and path.suffix == ".png":
        return str(path)  # of `notebook_page`
    if path.is_relative_to(PAGES):
        return str(path.relative_to(PAGES))
    if path.parts[0] != "keras_transformer" or len(path.parts) < 2:
        return None
    page = f"api/{path.parts[1].removesuffix('.py')}.md"
    return page if (DOCS / "pages" / page).is_file() else None
