"""Data sets as published: MNIST, CIFAR-10, ImageNet 32×32, folders of pictures, embedded digits."""

from pathlib import Path

from mintnet.data.dataset import DataError, ImageData, digits, mnist_slice
from mintnet.data.download import FileStatus, get, verify
from mintnet.data.readers import PARTS, load_cifar10, load_imagenet32, load_mnist

__all__ = ["NAMES", "DataError", "FileStatus", "ImageData", "get", "load", "mnist_slice", "verify"]

NAMES = ("digits", "mnist", "cifar10", "imagenet32", "folder")


def load(
    name: str,
    split: str,
    folder: str | Path | None = None,
    *,
    size: int | None = None,
    grey: bool = False,
) -> ImageData:
    """The images of one split, ``train`` or ``test``, of a data set.

    ``folder`` holds the files under their published names, directly or in a subfolder ``name``;
    with ``name="folder"`` it holds pictures, brought to ``size`` (32 if not given), grey if wanted.

    Examples:
        >>> data = load("digits", "train")
        >>> len(data), data.shape, data.levels
        (1437, (1, 8, 8), 17)
    """
    for what, given, known in (("data set", name, NAMES), ("split", split, PARTS)):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}; expected one of {', '.join(known)}")
    if name == "folder":
        try:
            from mintnet.data import folder as pictures  # needs Pillow, which others do not
        except ImportError as error:
            raise DataError.missing_extra("Pillow", "reading pictures") from error
        return pictures.load(split, folder, pictures.SIZE if size is None else size, grey)
    if size is not None or grey:
        raise ValueError(f"size and grey are for the data set 'folder'; {name} comes as it is")
    if name == "digits":
        return digits(split)
    readers = {"mnist": load_mnist, "cifar10": load_cifar10, "imagenet32": load_imagenet32}
    return readers[name](split, folder)
