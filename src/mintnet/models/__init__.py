"""Models: networks of bijections and what is built around them."""

from mintnet.models.classifier import CLASSIFIERS, Classifier, ClassifierConfig, Pixels
from mintnet.models.flow import Flow
from mintnet.models.mintnet import PRESETS, MintNet, MintNetConfig
from mintnet.models.original import import_original
from mintnet.models.resnet import ResNet, ResNetConfig
from mintnet.models.storage import ModelFileError
from mintnet.models.vectors import TableModel, VectorFlow

__all__ = [
    "CLASSIFIERS",
    "PRESETS",
    "Classifier",
    "ClassifierConfig",
    "Flow",
    "MintNet",
    "MintNetConfig",
    "ModelFileError",
    "Pixels",
    "ResNet",
    "ResNetConfig",
    "TableModel",
    "VectorFlow",
    "import_original",
]
