from .corpus import CorpusError as CorpusError
from .corpus import read_lines as read_lines
from .corpus import read_parallel as read_parallel
from .number_corpus import number_names as number_names
from .pipeline import BatchStream as BatchStream
from .pipeline import make_dataset as make_dataset
from .tokenizer import Tokenizer as Tokenizer
