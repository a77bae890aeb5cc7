"""Commands on an exported folder: `serve` answers requests, `verify` replays its examples."""

import functools
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer.cli import options
from keras_transformer.cli.backend import require_tensorflow
from keras_transformer.cli.translators import load_exported
from keras_transformer.cores import usable_cores
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.serving.limits import Limits
from keras_transformer.settings import setting_of

commands = typer.Typer()

FolderArgument = Annotated[
    Path, typer.Argument(help="Folder that `keras-transformer export` wrote.", show_default=False)
]
Protect = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{TextSettings.rule('protect').summary} Only for /translate. May be repeated. "
        "[default: as exported]"
    ),
]


def translator_loader(folder, **options):
    """Returns a function that loads an exported folder; checks first that it can be loaded."""
    from keras_transformer.runs.translators import kind_of

    kind = kind_of(folder)
    if kind == "run":
        must = "A folder that `keras-transformer export` wrote is needed."
        raise FileNotFoundError(f"{must} Received: {str(folder)!r}")
    if kind == "saved_model":
        require_tensorflow()
    return functools.partial(load_exported, [folder], **options)


@commands.command()
@options.expand("settings", {"protect": (Protect, None)})
@options.expand(
    "limits",
    {
        field.name: (
            Annotated[int, typer.Option(help=setting_of(field).text, min=1)],
            field.default,
        )
        for field in fields(Limits)
    },
)
def serve(
    directory: FolderArgument,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 or :: for all of them.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="0 takes a free port, which is printed.", min=0, max=65535)
    ] = 8000,
    max_batch: Annotated[int, typer.Option(help="Maximum lines in a batch.", min=1)] = 32,
    workers: Annotated[
        int | None,
        typer.Option(help="Batches that run at once. [default: one for each core]", min=1),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="For CTranslate2; cuda has not been tried.")
    ] = "cpu",
    *,
    limits: dict[str, Any],
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may call the server. May be repeated."),
    ] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences/--lines", help="/translate splits lines into sentences.")
    ] = True,
    settings: dict[str, Any],
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(help="Proxies, as 10.0.0.1,10.1.0.0/16, whose X-Forwarded-For is believed."),
    ] = "",
) -> None:
    """Answer HTTP requests with an exported model, and show a page to try it.

    Example:

        keras-transformer serve served/
        keras-transformer serve served/ --host 0.0.0.0 --port 80 --max-lines 64
    """
    workers = usable_cores() if workers is None else workers
    load = translator_loader(directory, workers=workers, device=device)
    try:
        from keras_transformer.serving import server
    except ImportError as error:
        missing = "A server needs the extra `serve`: pip install '.[serve]' in a clone"
        raise ImportError(missing) from error
    server.serve(
        load,
        host=host,
        port=port,
        limits=Limits(**limits),
        max_batch=max_batch,
        workers=workers,
        cors_origins=cors_origin or (),
        settings={"split": "sentences" if sentences else "lines"} | settings,
        proxies=forwarded_allow_ips,
    )


@commands.command()
def verify(directory: FolderArgument) -> None:
    """Replay the examples of an exported model; exit with status 1 if an answer differs.

    Example:

        keras-transformer verify served/
    """
    translator = translator_loader(directory)()
    from keras_transformer.serving.verification import verify as verify_folder

    replayed = list(verify_folder(translator, directory))
    for answer in replayed:
        if not answer.is_equal:
            expected = f"expected {answer.expected!r}, received {answer.translation!r}"
            print(f"{answer.text!r}: {expected}; scores differ by {answer.difference:.2g}")
    equal = sum(answer.expected == answer.translation for answer in replayed)
    largest = max((answer.difference for answer in replayed), default=0.0)
    print(f"{equal} of {len(replayed)} translations are equal; scores differ by {largest:.2g}.")
    if not all(answer.is_equal for answer in replayed):
        raise typer.Exit(1)
