"""Where JAX keeps compiled programs for the next process."""

import contextlib
import os
import warnings
from pathlib import Path


def keep_programs() -> None:
    """Gives JAX a folder for compiled programs, `~/.cache/keras_transformer/jax`, if it has none.

    Compiling takes seconds for each shape; the next process, or notebook, loads the programs from
    the folder. If it is not writable, or there is no home, no program is kept, and JAX does not
    warn. The environment variable `JAX_COMPILATION_CACHE_DIR` names another folder; with
    `JAX_ENABLE_COMPILATION_CACHE=0`, no program is kept.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    # In a read-only folder, JAX would warn of each program that it cannot write.
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    with contextlib.suppress(OSError, RuntimeError):  # a read-only home, or none
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = caches / "keras_transformer" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        compilation_cache.reset_cache()  # JAX may have noted that it has no folder
