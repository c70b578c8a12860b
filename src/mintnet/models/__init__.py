"""Models: networks of bijections and what is built around them."""

from mintnet.models.flow import Flow
from mintnet.models.mintnet import PRESETS, MintNet, MintNetConfig
from mintnet.models.original import import_original
from mintnet.models.storage import ModelFileError

__all__ = ["PRESETS", "Flow", "MintNet", "MintNetConfig", "ModelFileError", "import_original"]
