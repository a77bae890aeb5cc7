from .config import TransformerConfig as TransformerConfig
from .decoder import TransformerDecoder as TransformerDecoder
from .encoder import TransformerEncoder as TransformerEncoder
from .transformer import Transformer as Transformer
from .transformer import load_model as load_model
