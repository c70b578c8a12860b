"""The first 128 test images of MNIST, which ship with the package to try trained models on.

MNIST is by LeCun, Cortes and Burges (CC BY-SA 3.0), see files/mnist-slice-credit.txt.
"""

from __future__ import annotations

from mintnet.data.dataset import ImageData
from mintnet.data.digits import embedded

SLICE = "mnist-slice"


def mnist_slice() -> ImageData:
    """128 images of 28 × 28 pixels with labels: too few for a figure, enough to see a model work.

    Examples:
        >>> mnist_slice().labels[:5].tolist()
        [7, 2, 1, 0, 4]
    """
    return ImageData(SLICE, *embedded("mnist-slice.npz"))
