"""Checkpoints from the Hugging Face hub: found on disk, or downloaded with room and network checked first."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_cli.errors import CheckpointError, DsparkError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

# What a checkpoint needs: weights, configuration, tokenizer, chat template. Sub-folders hold other formats, and
# 'consolidated' files hold the same weights again.
WANTED = ("*.safetensors", "*.json", "tokenizer*", "*.jinja", "merges.txt", "vocab.txt")
UNWANTED = ("*/*", "consolidated*", "*.onnx")

ROOM_TO_SPARE = 256 * 2**20  # bytes that stay free on the disk after a download


def find(repo: str) -> Path | None:
    """The folder of ``repo`` in the hub's cache if every file of its weights is there; asks no server."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(repo, local_files_only=True, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED))
        )
    except (LocalEntryNotFoundError, ValueError):
        return None
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    if not (folder / "config.json").exists():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return False
    return all((folder / shard).exists() for shard in shards)


def fetch(repo: str, *, tell: Callable[[str], None], progress: bool) -> Path:
    """Download ``repo`` into the hub's cache; files that are there already are not fetched again.

    Args:
        repo: owner/repo.
        tell: gets the size and the place, in words.
        progress: show the hub library's bars on standard error.

    Raises:
        CheckpointError: no such repository, no permission, no network, no room, or no weights in it.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    place = Path(constants.HF_HUB_CACHE).expanduser()
    try:
        info = _listing(repo)
        missing = _missing_bytes(info, place)
        _check_room(repo, missing, place)
        tell(f"downloading {repo}: {size_in_words(missing)} to {place}")
        if not progress:
            disable_progress_bars()
        folder = snapshot_download(repo, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED), max_workers=4)
    except DsparkError:
        raise
    except Exception as error:
        raise explain(repo, error) from error
    return Path(folder)


def _listing(repo: str) -> ModelInfo:
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, files_metadata=True, timeout=20)
    if not any(file.rfilename.endswith(".safetensors") and _is_wanted(file.rfilename) for file in info.siblings or []):
        gguf = [file.rfilename for file in info.siblings or [] if file.rfilename.endswith(".gguf")]
        way_out = f"download one of its .gguf files, such as {gguf[0]}, and give its path" if gguf else ""
        raise CheckpointError(
            f"the repository {repo} holds no safetensors weights", way_out or "choose another repository"
        )
    return info


def _is_wanted(name: str) -> bool:
    return any(fnmatch(name, rule) for rule in WANTED) and not any(fnmatch(name, rule) for rule in UNWANTED)


def _missing_bytes(info: ModelInfo, place: Path) -> int:
    """Bytes of the wanted files that are not yet in the cache."""
    folder = place / f"models--{info.id.replace('/', '--')}" / "snapshots" / str(info.sha)
    wanted = [file for file in info.siblings or [] if _is_wanted(file.rfilename)]
    return sum(file.size or 0 for file in wanted if not (folder / file.rfilename).exists())


def _check_room(repo: str, needed: int, place: Path) -> None:
    existing = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed + ROOM_TO_SPARE > free:
        raise CheckpointError(
            f"{repo} needs {size_in_words(needed)} and {existing} has {size_in_words(free)} free",
            "make room, or set HF_HOME to a folder on a larger disk",
        )


def explain(repo: str, error: Exception) -> CheckpointError:
    """The plain sentence for what the hub library raised."""
    from huggingface_hub import constants, errors

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    page = f"{constants.ENDPOINT}/{repo}"
    if _any(chain, errors.GatedRepoError):
        return CheckpointError(
            f"{repo} asks for its licence to be accepted first",
            f"accept it on {page}, then log in with hf auth login",
        )
    if _any(chain, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"the hub has no repository {repo} that is open to you",
            "check the spelling, or log in with hf auth login if it is private",
        )
    if _any(chain, errors.OfflineModeIsEnabled):
        return CheckpointError(
            f"{repo} is not on this machine and HF_HUB_OFFLINE forbids a download",
            "unset HF_HUB_OFFLINE, or give the folder of a checkpoint",
        )
    status = next((item.response.status_code for item in chain if isinstance(item, errors.HfHubHTTPError)), None)
    if status is not None:
        return CheckpointError(f"the hub answered {status} to the request for {repo}", "try again later")
    full = next(
        (item for item in chain if isinstance(item, OSError) and item.errno in (errno.ENOSPC, errno.EDQUOT)), None
    )
    if full is not None:
        return CheckpointError(f"the disk was full before {repo} was whole", "make room and run the command again")
    denied = next((item for item in chain if isinstance(item, OSError) and item.filename), None)
    if denied is not None:
        return CheckpointError(
            f"cannot keep {repo} at {denied.filename} ({denied.strerror})",
            "correct that, or set HF_HOME to another folder",
        )
    return CheckpointError(
        f"cannot download {repo} from {constants.ENDPOINT} ({type(error).__name__})",
        "check the network and run the command again, or give the folder of a checkpoint",
    )


def _any(chain: list[BaseException], kind: type[BaseException]) -> bool:
    return any(isinstance(item, kind) for item in chain)


def size_in_words(count: int) -> str:
    """``count`` bytes for people, in decimal units as disks are sold: 98 MB, 8.0 GB."""
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= width:
            return f"{count / width:.1f} {unit}" if count < 10 * width else f"{count / width:.0f} {unit}"
    return f"{count} bytes"
