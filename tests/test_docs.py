"""The pages: built without a warning, whole, true, and with links and examples that work."""

import ast
import functools
import hashlib
import html
import importlib
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest
import yaml

import keras_transformer
from tests import processes
from tests.importing import multilingual_models
from tests.session import made_once

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
MARKDOWN = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted(PAGES.rglob("*.md")),
]
MARKDOWN = [page for page in MARKDOWN if page.is_file()]
LINK = re.compile(r"""\]\(([^()\s]+)\)|(?:href|src)="([^"]+)\"""")
FENCE = re.compile(
    r"""(?:^[ ]*<!--[ ]not[ ]run(?P<reason>.*?)-->\s*?\n)?
    ^(?P<indent>[ ]*)```(?P<language>\w+)(?:[ ]title="(?P<title>[^"]+)")?[^\n]*\n
    (?P<code>.*?)
    ^(?P=indent)```[ ]*$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)

# A block may hold several commands.
BENCHMARK = re.compile(r"python (benchmarks/\w+\.py)((?:(?!python benchmarks)[^`])*)")

# What is in quotation marks may go on in the next line.
COMMAND = re.compile(r'keras-transformer ((?:"[^"]*"|[^"\n])*)')

PRINTED = re.compile(r"^<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)

every_page = pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)


# === The site ===


def build_site(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    built = subprocess.run(
        [*command, "--config-file", ROOT / "docs" / "mkdocs.yml", "--site-dir", folder],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    # The index as a script: a page that is opened from the disk can load no JSON.
    assert (folder / "search" / "search_index.js").is_file()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages: path within the site -> HTML."""
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    built = made_once(tmp_path_factory, "site", build_site)
    return {
        path.relative_to(built).as_posix(): path.read_text("utf-8")
        for path in built.rglob("*")
        if path.suffix in (".html", ".css")
    }


def public_names():
    """Path and object of each public name of the package and of its layers."""
    for parent in (keras_transformer, keras_transformer.layers):
        for name in parent.__all__:
            value = getattr(parent, name)
            if not inspect.ismodule(value):
                yield f"{parent.__name__}.{name}", value


def words_of(text):
    return " ".join(re.findall(r"\w+", text))


@pytest.mark.long
@pytest.mark.tensorflow_only
def test_every_line_of_a_public_docstring_is_on_its_page(site):
    pages = {}
    for name, text in site.items():
        if name.startswith("api/"):
            # The sources, which can be unfolded, hold the docstring as it is.
            text = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
            pages[name] = words_of(html.unescape(re.sub(r"<[^>]+>", "", text)))
            # Examples are code, not text; and every section has been made a heading or bold.
            prose = re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
            assert "&gt;&gt;&gt;" not in prose, name
            assert not re.search(r"<p>(Args|Call arguments|Returns|Raises|Masking):", prose), name
    for path, value in public_names():
        (name,) = (page for page, text in site.items() if f'id="{path}"' in text)
        # The address of a link is not text.
        docstring = re.sub(r"\]\(https:[^)]*\)", "]", inspect.getdoc(value))
        missing = [line for line in docstring.splitlines() if words_of(line) not in pages[name]]
        assert missing == [], path


@functools.cache
def program():
    """The command line with its commands and their options."""
    import typer

    from keras_transformer.cli import app

    return typer.main.get_command(app)


def test_every_command_and_option_is_on_the_page_of_the_command_line(site):
    page = re.sub(r"<a class=\"headerlink.*?</a>", "", site["api/cli.html"])
    for name, command in program().commands.items():
        assert f"<code>keras-transformer {name}</code></h2>" in page
        for option in (option for option in command.params if option.opts[0].startswith("--")):
            assert f"<code>{option.opts[0]}" in page


def test_links_of_the_site_lead_somewhere(site):
    # What is only in the sources is named in the pages, not linked.
    for name, text in site.items():
        if not name.endswith(".html") or name == "404.html":
            continue
        for target in re.findall(r'<a [^>]*?href="([^"]*)"', text, flags=re.DOTALL):
            path, _, anchor = html.unescape(target).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            path = os.path.normpath(pathlib.Path(name).parent / path) if path else name
            assert path == "." or path in site, f"{name}: {target}"
            if anchor and path != ".":
                assert f'id="{anchor}"' in site[path], f"{name}: {target}"


def test_site_loads_nothing_from_elsewhere(site):
    tags = r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=[\"']?(?:https?:)?//"
    loaded = re.compile(tags + r"|url\([\"']?(?:https?:)?//")
    for name, text in site.items():
        assert not loaded.search(text), name


# === The sources of the pages ===


@every_page
def test_links_to_files_lead_somewhere(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}
    for target in (a or b for a, b in LINK.findall(text)):
        path, _, anchor = target.partition("#")
        if path:
            assert re.match(r"https?:|mailto:", path) or (page.parent / path).exists(), target
        else:
            assert anchor in anchors, target


def slug(heading):
    """The anchor that a heading gets where the repository is browsed."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_tests_that_prove_are_there():
    lines = (PAGES / "proved.md").read_text("utf-8").splitlines()
    cells = [line.split("|")[-2] for line in lines if line.startswith("| ")]
    proofs = re.findall(r"\]\(([^)]+)\)([^\[]*)", "".join(cells))
    assert len(proofs) > 200
    for path, names in proofs:
        for name in re.findall(r"`(\w+)`", names):
            assert f"def {name}(" in (PAGES / path).read_text("utf-8"), f"{path}: {name}"


def test_rows_of_table_3_have_their_parameters():
    rows = re.findall(
        r"^\| (\w+) \| (.*?) \| ([\d,]+) \| (?:([+−][\d.]+) M)?",
        (PAGES / "paper.md").read_text("utf-8"),
        flags=re.MULTILINE,
    )
    assert len(rows) == 14
    base = parameters(keras_transformer.TransformerConfig.base(37_000))
    for row, arguments, count, difference in rows:
        fields = re.findall(r"(\w+)=([\w.]+|\"\w+\")", arguments)
        fields = {name: json.loads(value) for name, value in fields if name != "label_smoothing"}
        config = keras_transformer.TransformerConfig.base(37_000, **fields)
        if row == "big":
            assert config == keras_transformer.TransformerConfig.big(37_000)
        assert parameters(config) == int(count.replace(",", "")), arguments
        if difference:
            difference = float(difference.replace("−", "-"))
            assert round((parameters(config) - base) / 1e6, 1) == difference, arguments


def parameters(config):
    """Counted from the paper's matrices, with biases, by hand."""
    width, inner, heads = config.hidden_dim, config.intermediate_dim, config.num_heads
    query_or_key = heads * config.key_dim * (width + 1)
    value = heads * config.value_dim * (width + 1)
    output = (heads * config.value_dim + 1) * width
    attention = 2 * query_or_key + value + output
    feed_forward = (width + 1) * inner + (inner + 1) * width
    norm = 2 * width
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    positions = (config.max_sequence_length or 0) * width
    return encoder + decoder + config.vocabulary_size * width + positions


def test_kubernetes_manifest_gives_each_pod_its_tf_config():
    manifest = (PAGES / "devices.md").read_text("utf-8").partition("```yaml\n")[2]
    service, job = yaml.safe_load_all(manifest.partition("```")[0])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    for index in range(job["spec"]["completions"]):
        *bash, script = container["command"]
        pod = {each["name"]: each["value"] for each in container["env"]}
        pod |= {"JOB_COMPLETION_INDEX": str(index), "PATH": os.environ["PATH"]}
        script, start, _ = script.partition("exec keras-transformer")
        shown = subprocess.check_output([*bash, f"{script}echo $TF_CONFIG"], env=pod, text=True)
        config = json.loads(shown)
        workers = [f"mine-{n}.{service['metadata']['name']}:2222" for n in range(2)]
        assert start
        assert config == {
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": index},
        }


# === The examples ===


@every_page
def test_examples_that_are_not_run_say_why(page):
    for block in FENCE.finditer(page.read_text("utf-8")):
        assert block["reason"] is None or re.fullmatch(r": .{10,}", block["reason"].rstrip())


def to_script(markdown):
    """The Python blocks of a page as one program, each line where it stands in the page.

    Bash blocks that begin with `keras-transformer` run in between, where they stand. A block runs
    unless `<!-- not run: why -->` is written above it.
    """
    lines = [""] * len(markdown.splitlines())
    for block in FENCE.finditer(markdown):
        code = textwrap.dedent(block["code"])
        first = markdown.count("\n", 0, block.start("code"))
        if block["reason"] is not None:
            continue
        if block["language"] == "python":
            lines[first : first + code.count("\n")] = code.splitlines()
        elif block["language"] == "bash" and code.startswith("keras-transformer "):
            command = ["bash", "-euo", "pipefail", "-c", code]
            lines[first] = f"__import__('subprocess').run({command!r}, check=True)"
    return "\n".join(lines) + "\n"


def pages_with_examples():
    return [page for page in MARKDOWN if to_script(page.read_text("utf-8")).strip()]


@pytest.mark.parametrize("page", pages_with_examples(), ids=lambda page: page.name)
def test_examples_use_names_and_commands_that_exist(page):
    """Also those that are not run."""
    for block in FENCE.finditer(page.read_text("utf-8")):
        code = textwrap.dedent(block["code"])
        if block["language"] == "python":
            check_names(ast.parse(code))
        elif block["language"] == "bash":
            for line in COMMAND.findall(code.replace("\\\n", " ")):
                check_command(line)


def check_names(tree):
    """`import keras_transformer as kt` stands in the first block of a page."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("keras_transformer"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("kt", "keras_transformer"):
                assert hasattr(keras_transformer, node.attr), node.attr


def check_command(line):
    """The words up to a comment, pipe or redirection: a command and options that it has."""
    words = shlex.split(re.split(r"[|<>`]| #", line)[0])
    command = program()
    while hasattr(command, "commands") and not words[0].startswith("--"):
        command = command.commands[words.pop(0)]
    options = {name for one in command.params for name in one.opts + one.secondary_opts}
    assert {word for word in words if re.match("--[a-z]", word)} <= options | {"--help"}, line


@every_page
def test_benchmarks_are_named_with_options_that_they_take(page):
    text = page.read_text("utf-8").replace("\n", " ")
    for name, arguments in BENCHMARK.findall(text):
        source = (ROOT / name).read_text("utf-8")
        option = r'add_argument\(\s*"(--[\w-]+)"'
        given = set(re.findall(r"--[\w-]+", arguments))
        assert given <= set(re.findall(option, source)), name
        if arguments:
            assert set(re.findall(option + r"[^()]*required=True", source)) <= given, name


@pytest.mark.long
@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["ladder", "multi30k"])
def test_page_of_results_holds_the_tables_of_the_kept_figures(name):
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", "--table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "pages" / "results.md").read_text("utf-8")
    for part in printed.strip().split("\n\n"):
        assert part in page


def test_packaged_recipe_is_the_rung_that_was_measured(monkeypatch):
    """But for the test split, which the ladder does not read, the precision and the checkpoints."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    rung = importlib.import_module("ladder").recipe_of("long")
    del rung["training"]["precision"], rung["training"]["checkpoint_updates"]
    recipe = yaml.safe_load(
        (ROOT / "keras_transformer" / "recipes" / "multi30k_en_de.yaml").read_text("utf-8")
    )
    del recipe["data"]["test"]
    assert recipe == rung


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of runs that examples have trained, by their recipes: pages share `numbers.yaml`."""
    return tmp_path_factory.mktemp("trained")


@pytest.mark.long
@pytest.mark.tensorflow_only
@pytest.mark.parametrize("page", pages_with_examples(), ids=lambda page: page.name)
def test_examples_run(page, tmp_path, trained):
    text = page.read_text("utf-8")
    copies = {}
    for block in FENCE.finditer(text):
        if block["title"]:
            code = textwrap.dedent(block["code"])
            (tmp_path / block["title"]).write_text(code, "utf-8")
            folder = tmp_path / "runs" / pathlib.Path(block["title"]).stem
            copies[folder] = trained / hashlib.sha256(code.encode()).hexdigest()
    for folder, copy in copies.items():
        if copy.is_dir():  # `train` has nothing to do then
            shutil.copytree(copy, folder)
    if page.name == "new_language.md":
        make_files_of_a_language(tmp_path)
    # Errors name the line of the page.
    path = tmp_path / f"{page.name}.py"
    path.write_text(to_script(text), "utf-8")
    programs = pathlib.Path(sys.executable).parent
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    ran = processes.run(
        [sys.executable, path],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    for block in PRINTED.findall(text):
        assert block in ran.stdout, f"{block}must be printed. Received: ...{ran.stdout[-3000:]}"
    for folder, copy in copies.items():
        if folder.is_dir() and not copy.is_dir():
            shutil.copytree(folder, copy)
    if page.name == "runs.md":
        check_run_folder(text, tmp_path / "runs" / "small")


def make_files_of_a_language(folder):
    """A small model in place of NLLB-200, and lines of a language that it lacks."""
    multilingual_models.make_model(folder / "nllb-200-distilled-600M", "nllb")
    for name, split in (("train", "train"), ("valid", "held_out"), ("old", "held_out")):
        sides = zip(*keras_transformer.number_names(split, 60), strict=True)
        for language, lines in zip(("en", "de" if name == "old" else "tyv"), sides, strict=True):
            (folder / f"{name}.{language}").write_text("\n".join(lines) + "\n", "utf-8")


def check_run_folder(markdown, run):
    """The table of a run's files against a run."""
    table = markdown.partition("## What is in a run folder")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w.]+)/?` \| (?!only with)", table, flags=re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in run.iterdir())
