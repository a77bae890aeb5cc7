from . import (
    data as data,
)
from . import (
    decoding as decoding,
)
from . import (
    evaluation as evaluation,
)
from . import (
    export as export,
)
from . import (
    layers as layers,
)
from . import (
    models as models,
)
from . import (
    plotting as plotting,
)
from . import (
    runs as runs,
)
from . import (
    training as training,
)
from .data import Tokenizer as Tokenizer
from .data import make_dataset as make_dataset
from .data import number_names as number_names
from .data import read_parallel as read_parallel
from .decoding import Hypothesis as Hypothesis
from .decoding import SearchSettings as SearchSettings
from .decoding import Translator as Translator
from .decoding import beam_search as beam_search
from .decoding import greedy_search as greedy_search
from .export import export_saved_model as export_saved_model
from .models import Transformer as Transformer
from .models import TransformerConfig as TransformerConfig
from .models import load_model as load_model
from .runs import load_run as load_run
from .training import Perplexity as Perplexity
from .training import SmoothedCrossEntropy as SmoothedCrossEntropy
from .training import TokenAccuracy as TokenAccuracy
from .training import TranslationEvaluator as TranslationEvaluator
from .training import WarmupSchedule as WarmupSchedule
from .training import get_strategy as get_strategy
from .training import paper_optimizer as paper_optimizer

__version__: str
