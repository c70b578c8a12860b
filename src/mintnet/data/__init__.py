"""Data sets as published: MNIST, CIFAR-10, ImageNet 32×32, folders of pictures, embedded digits."""

from mintnet.data.dataset import DataError, ImageData
from mintnet.data.download import FileStatus, get, verify
from mintnet.data.mnist_slice import mnist_slice
from mintnet.data.registry import NAMES, SPLITS, load

__all__ = [
    "NAMES",
    "SPLITS",
    "DataError",
    "FileStatus",
    "ImageData",
    "get",
    "load",
    "mnist_slice",
    "verify",
]
