from .config import TransformerConfig as TransformerConfig
from .decoder import TransformerDecoder as TransformerDecoder
from .encoder import TransformerEncoder as TransformerEncoder
from .loading import load_model as load_model
from .transformer import Transformer as Transformer
