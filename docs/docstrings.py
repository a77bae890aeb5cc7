"""Reads the package for the API pages: without importing it, and in its own docstring style.

A Griffe extension. Our docstrings have sections that no docstring style knows (`Call arguments:`,
`Masking:`), so they are written as Markdown here; and public names are resolved lazily, so they
are told to Griffe here.
"""

import ast
import re

import griffe

# Sections whose entries stand below, indented: `name: what it is`.
LISTS = ("Args", "Call arguments", "Attributes", "Raises")
# Sections of text, on the same line or below, indented.
TEXTS = (
    "Returns",
    "Yields",
    "Letters",
    "Masking",
    "Precision",
    "Departures from the paper",
    "Example",
    "Reference",
)
SECTION = re.compile(rf"({'|'.join(LISTS + TEXTS)}):(?: +(\S.*))?")
ENTRY = re.compile(r"(\S[^:]*): +(.*)")
CODE_SPAN = re.compile(r"`(\w+)`")


class OwnDocstrings(griffe.Extension):
    """Makes public names known under the paths users import, and docstrings Markdown."""

    def on_package(self, *, pkg, loader, **kwargs):
        """Once the package is read."""
        lazy_names = ast.literal_eval(str(pkg["_MODULES"].value))
        for name, home in lazy_names.items():
            pkg[name] = griffe.Alias(name, f"{pkg.path}.{home}.{name}")
        members = list(walk(pkg))
        links = linkable(members)
        for member in members:
            if member.docstring is not None:
                text = to_markdown(member.docstring.value)
                member.docstring.value = with_links(text, links, member.name)


def walk(parent):
    """All that is defined in a module or class, however deep; what it imports is not."""
    for member in parent.members.values():
        if not member.is_alias:
            yield member
            yield from walk(member)


def linkable(members):
    """Path of each public class, and of each function whose name means nothing else."""
    functions = [member for member in members if member.is_function]
    arguments = {parameter.name for function in functions for parameter in function.parameters}
    return {
        member.name: member.path
        for member in members
        if member.is_class
        or (member.is_function and member.parent.is_module and member.name not in arguments)
    }


def with_links(markdown, links, own_name):
    """Links code that is a name of ours, where that name has a place in the pages."""

    def link(match):
        name = match[1]
        if name == own_name or name not in links:
            return match[0]
        return f'<autoref optional identifier="{links[name]}"><code>{name}</code></autoref>'

    # Every second part is fenced code.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part[:3] == "```" else CODE_SPAN.sub(link, part) for part in parts)


def to_markdown(docstring):
    """A docstring of ours as Markdown: sections become headed lists and paragraphs."""
    lines = docstring.splitlines()
    written = []
    while lines:
        section = SECTION.fullmatch(lines[0])
        if section is None:
            written.append(lines.pop(0))
            continue
        lines.pop(0)
        name, body = section.groups()
        if body:  # on the same line, and goes on below
            written += ["", f"**{name}:** {body}", *indented(lines), ""]
        else:
            body = indented(lines)
            body = entries(body) if name in LISTS else body
            written += ["", f'<p class="section">{name}</p>', "", *body, ""]
    return fence_examples("\n".join(written))


def indented(lines):
    """Takes the indented lines off the front, with the empty ones between them."""
    end = next((n for n, line in enumerate(lines) if line and line[0] != " "), len(lines))
    taken = [line.removeprefix("    ") for line in lines[:end]]
    del lines[:end]
    return taken


def entries(body):
    """The entries of a section as a Markdown list."""
    written = []
    for line in body:
        entry = ENTRY.fullmatch(line)
        if entry is None:
            written.append(f"  {line}".rstrip())
        else:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            written.append(f"- {names}: {entry[2]}")
    return written


def fence_examples(markdown):
    """Interpreter sessions as fenced code."""
    return re.sub(
        r"^>>> (?:.+\n?)+",
        lambda m: f"```pycon\n{m[0].rstrip()}\n```\n",
        markdown,
        flags=re.MULTILINE,
    )
