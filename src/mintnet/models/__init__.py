"""Models: networks of bijections and what is built around them."""

from mintnet.models.classifier import CLASSIFIERS as CLASSIFIERS
from mintnet.models.classifier import Classifier as Classifier
from mintnet.models.classifier import ClassifierConfig as ClassifierConfig
from mintnet.models.classifier import Pixels as Pixels
from mintnet.models.flow import Flow as Flow
from mintnet.models.mintnet import PRESETS as PRESETS
from mintnet.models.mintnet import MintNet as MintNet
from mintnet.models.mintnet import MintNetConfig as MintNetConfig
from mintnet.models.original import import_original as import_original
from mintnet.models.resnet import ResNet as ResNet
from mintnet.models.resnet import ResNetConfig as ResNetConfig
from mintnet.models.storage import ModelFileError as ModelFileError
from mintnet.models.vectors import TableModel as TableModel
from mintnet.models.vectors import VectorFlow as VectorFlow
