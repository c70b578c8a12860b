"""Models on the Hugging Face hub: fetched with their hashes checked, pushed with a model card."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mintnet.models.base import Model
from mintnet.models.pictures import image_grid, save_picture
from mintnet.models.storage import CONFIG, WEIGHTS, ModelFileError
from mintnet.solvers import REMEDY

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
NEEDED = "models of the hub need huggingface_hub: pip install 'mintnet[hub]'"
PUBLIC = ("preset", "data", "validation", "step")  # what others need to know of the training
CARD = Path(__file__).with_name("card.md").read_text("utf-8")


def is_hub_name(name: str | Path) -> bool:
    """Whether a name can be one of the hub, user/model, and not that of a folder here."""
    return bool(NAME.fullmatch(str(name))) and not Path(name).parent.exists()


def fetch(name: str) -> Path:
    """The folder in the hub's cache with the model user/model, downloaded where it is not there.

    ``HF_ENDPOINT`` names another server than the hub. Raises `ModelFileError` if there is no such
    model, no network, or a file that does not have the hash by which the hub knows it.
    """
    missing = f"no model {name}: there is no such folder, and"
    try:
        from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url
    except ModuleNotFoundError:
        raise ModelFileError(f"{missing} {NEEDED}") from None
    endpoint = os.environ.get("HF_ENDPOINT")
    options: dict[str, Any] = {"library_name": "mintnet", "endpoint": endpoint}
    try:
        try:
            get_hf_file_metadata(hf_hub_url(name, CONFIG, endpoint=endpoint))
        except errors.HfHubHTTPError:
            raise
        except Exception:  # no network, of several libraries' errors: the cache may have it
            options["local_files_only"] = True
        config = Path(hf_hub_download(name, CONFIG, **options))
        commit = config.parent.name  # both files of one revision
        weights = Path(hf_hub_download(name, WEIGHTS, revision=commit, **options))
    except errors.RepositoryNotFoundError:
        problem = "no such model on the hub that you may read; a private one needs hf auth login"
        raise ModelFileError(f"{missing} {problem}") from None
    except errors.RemoteEntryNotFoundError as error:
        file = WEIGHTS if WEIGHTS in str(error) else CONFIG
        raise ModelFileError(f"{name} on the hub is no model of mintnet: no {file}") from None
    except errors.LocalEntryNotFoundError:
        raise ModelFileError(f"{missing} the hub cannot be reached; look at the network") from None
    except Exception as error:  # of several libraries for HTTP
        raise ModelFileError(f"the download of {name} failed, try again: {_why(error)}") from error
    for path in (config, weights):
        _check_hash(path)
    return config.parent


def _why(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_hash(path: Path) -> None:
    """Raise unless a file of the cache is what its name there says; a wrong file is removed."""
    blob = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return  # a cache without links has no hashes; the readers check what they read
    data = blob.read_bytes()
    git = b"blob %d\0" % len(data) + data  # blobs are named as in git, large ones by SHA-256
    found = hashlib.sha256(data) if len(blob.name) == 64 else hashlib.sha1(git)
    if found.hexdigest() != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        hashes = f"its hash is {found.hexdigest()[:12]}…, expected {blob.name[:12]}…"
        problem = f"is not what the hub announced ({hashes}); it was removed, try again"
        raise ModelFileError(f"{path.name} {problem}")


def push(model: Model, name: str, figures: Mapping[str, object], private: bool) -> str:
    """Upload weights, configuration and model card in one commit; gives the page's address."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a model on the hub is called user/model; got {name!r}")
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError:
        raise ModelFileError(NEEDED) from None
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="mintnet")
    public = {name: model.about[name] for name in PUBLIC if name in model.about}
    if isinstance(data := public.get("data"), dict):
        public["data"] = {name: value for name, value in data.items() if name != "folder"}
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder, **public)
        Path(folder, "README.md").write_text(_card(model, name, figures, Path(folder)), "utf-8")
        try:
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"A {model.kind}")
        except Exception as error:
            raise ModelFileError(f"{name} could not be pushed to the hub: {_why(error)}") from error
    return f"{api.endpoint}/{name}"


def _card(model: Model, name: str, figures: Mapping[str, object], folder: Path) -> str:
    """The model card; of a density model with a picture of samples, each verified."""
    facts: dict[str, object] = {"parameters": f"{model.parameter_count():,}", **figures}
    samples = ""
    flow: Any = model
    if model.kind == "flow" and len(model.shape) == 3 and model.shape[0] in (1, 3):
        solution = flow.solve(flow.sample_latents(16, seed=0))
        images = flow.to_images(solution.require(REMEDY))
        save_picture(image_grid(images, model.levels, width=400), folder / "samples.png")
        facts["largest residual of 16 samples"] = f"{float(solution.residual.max()):.1e}"
        samples = "\n![16 samples](samples.png)\n\nSamples of seed 0, none left out.\n"
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    shape = " × ".join(map(str, model.shape))
    about = {"name": name, "kind": model.kind, "cls": type(model).__name__, "shape": shape}
    return CARD.format(**about, levels=model.levels, rows=rows, samples=samples)
