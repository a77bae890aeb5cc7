from . import (
    processors as processors,
)
from .beam import beam_search as beam_search
from .greedy import greedy_search as greedy_search
from .hypothesis import Attention as Attention
from .hypothesis import Hypothesis as Hypothesis
from .search import SearchResult as SearchResult
from .search import StepOutput as StepOutput
from .search_settings import SearchSettings as SearchSettings
from .translator import Translator as Translator
