"""A Griffe extension that converts the package's docstrings to Markdown for the API pages.

Docstrings here have sections that Griffe's docstring styles do not have (`Call arguments:`,
`Masking:`). Griffe reads the public names from the `.pyi` files, without importing the package.
"""

import importlib
import inspect
import re

import griffe

# Sections with indented entries below: `name: description`.
LISTS = ("Args", "Call arguments", "Attributes", "Raises")
# Sections of text, on the same line or indented below.
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


class MarkdownDocstrings(griffe.Extension):
    """Converts each docstring of the package to Markdown."""

    def on_package(self, *, pkg, loader, **kwargs):
        """Called by Griffe when it has read the package."""
        members = list(walk(pkg))
        links = linkable(members)
        for member in members:
            if member.docstring is not None:
                text = to_markdown(docstring_of(member))
                member.docstring.value = with_links(text, links, member.name)


def walk(parent):
    """Yields all definitions in a module or class, nested ones included, without imports."""
    for member in parent.members.values():
        if not member.is_alias:
            yield member
            yield from walk(member)


def docstring_of(member):
    """Returns the docstring; if fields are a `setting`, which it describes, from the class."""
    is_settings = member.is_class and "Settings" in map(str, member.bases)
    fields = member.attributes.values() if is_settings else ()
    if not any(str(field.value).startswith("setting(") for field in fields):
        return member.docstring.value
    return inspect.getdoc(getattr(importlib.import_module(member.module.path), member.name))


def linkable(members):
    """Returns {name: path} of classes, and of functions whose name is not also an argument's."""
    functions = [member for member in members if member.is_function]
    arguments = {parameter.name for function in functions for parameter in function.parameters}
    return {
        member.name: member.path
        for member in members
        if member.is_class
        or (member.is_function and member.parent.is_module and member.name not in arguments)
    }


def with_links(markdown, links, own_name):
    """Links each code span that names a class or function of the package to its API page."""

    def link(match):
        name = match[1]
        if name == own_name or name not in links:
            return match[0]
        return f'<autoref optional identifier="{links[name]}"><code>{name}</code></autoref>'

    # The parts with an odd index are fenced code, which stays as it is.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part[:3] == "```" else CODE_SPAN.sub(link, part) for part in parts)


def to_markdown(docstring):
    """Converts a docstring to Markdown: sections become lists and paragraphs with headings."""
    lines = docstring.splitlines()
    written = []
    while lines:
        section = SECTION.fullmatch(lines[0])
        if section is None:
            written.append(lines.pop(0))
            continue
        lines.pop(0)
        name, body = section.groups()
        if body:  # the text starts on the line of the section's name
            written += ["", f"**{name}:** {body}", *indented(lines), ""]
        else:
            body = indented(lines)
            body = entries(body) if name in LISTS else body
            written += ["", f'<p class="section">{name}</p>', "", *body, ""]
    return fence_examples("\n".join(written))


def indented(lines):
    """Removes and returns the leading indented lines, with the blank lines between them."""
    end = next((n for n, line in enumerate(lines) if line and line[0] != " "), len(lines))
    taken = [line.removeprefix("    ") for line in lines[:end]]
    del lines[:end]
    return taken


def entries(body):
    """Converts the entries of a section to a Markdown list."""
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
    """Fences `>>>` examples."""
    return re.sub(
        r"^>>> (?:.+\n?)+",
        lambda m: f"```pycon\n{m[0].rstrip()}\n```\n",
        markdown,
        flags=re.MULTILINE,
    )
