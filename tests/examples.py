"""How many random examples a property is tried on: few by default, many with `--long`."""

from hypothesis import settings


def examples(short, long, **options):
    """Settings of a property: `short` examples, the same ones every time; `long` with `--long`."""
    is_long = settings.get_current_profile_name() == "long"
    return settings(max_examples=long if is_long else short, **options)
