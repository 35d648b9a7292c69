"""Model names to HF folders, and folders to models and tokenizers.

    resolve("smollm2-135m-instruct") -> ~/.cache/qwengyre/smollm2-135m-instruct-1
    causal_lm(folder), tokenizer(folder), window(folder), eos_ids(folder)

A folder in the cache is complete or absent: it is built beside its place under a file lock and renamed into it.
"""

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwengyre.errors import ConfigError, MachineError, nearest
from qwengyre.quiet import no_bars
from qwengyre.types import Phase, Progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

DEFAULT = "smollm2-135m-instruct"
TINY, LONG = "tiny", "tiny-long"
BUILT = {DEFAULT: "smollm2-135m-instruct-1", TINY: "tiny-1", LONG: "tiny-long-1"}
"""Names that are built into the cache -> folder name there; the number grows when what is built changes."""
TEMPLATE = Path(__file__).parent / "templates" / "chatml_tools.jinja"
ADAPTER = "adapter_config.json"
END_OF_TURN = "<|im_end|>"


def resolve(name: str, *, cache: Path | None = None, progress: Progress = lambda phase: None) -> Path:
    """The local HF folder of model `name`: a built-in name, a local folder, else a hub id (fetched by transformers).

    `cache` defaults to `default_cache()`; only built-in models go there. `progress` is told of each phase.
    Raises ConfigError (no such model or folder) or MachineError (missing package, no network).
    """
    if name in BUILT:
        return _built(name, cache or default_cache(), progress)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", ADAPTER)):
            raise ConfigError(f"model.name={name} is a folder without config.json; give a HF model folder")
        base_of(folder)
        return folder.resolve()
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        hint = "no such folder" if os.sep in name else nearest(name, list(BUILT))
        raise ConfigError(f"model.name={name} is no model ({hint}); give a HF model folder, a hub id or {list(BUILT)}")
    return _from_hub(name, progress)


def default_cache() -> Path:
    """$QWENGYRE_CACHE, else qwengyre in $XDG_CACHE_HOME, else in ~/.cache."""
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("QWENGYRE_CACHE") or general / "qwengyre").expanduser()


def base_of(folder: Path) -> Path:
    """The folder of the whole model: `folder`, or what its adapter was trained on. Raises ConfigError: not here."""
    if not (folder / ADAPTER).is_file():
        return folder
    base = Path(str(_json(folder / ADAPTER).get("base_model_name_or_path")))
    if not (base / "config.json").is_file():
        raise ConfigError(
            f"{folder} is an adapter of {base}, which is not here; set base_model_name_or_path in its {ADAPTER}"
        )
    return base


def causal_lm(folder: Path, dtype: "torch.dtype | None" = None) -> "PreTrainedModel":
    """The model of a HF folder in `dtype` (None: fp32), on the CPU, in eval mode (no dropout), tied weights tied.

    The folder of an adapter gives the model that it makes of its base, as one.
    """
    _require()
    import torch
    from transformers import AutoModelForCausalLM

    _config(folder)
    try:
        with no_bars():
            dtype, base = dtype or torch.float32, base_of(folder)
            model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
            model = model if base == folder else _merged(model, folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"model {folder} cannot be loaded ({_line(error)}); give a causal HF model") from None
    return model.eval()


def tokenizer(folder: Path, chat_template: str = "") -> "PreTrainedTokenizerFast":
    """The tokenizer of a HF folder; `chat_template` names a jinja file that replaces the folder's own template.

    Raises ConfigError when there is no template in either place, or the file cannot be read.
    """
    _require()
    from transformers import AutoTokenizer

    _config(folder)
    try:
        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model {folder} has no usable tokenizer ({_line(error)}); add tokenizer.json") from None
    if chat_template:
        try:
            loaded.chat_template = Path(chat_template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"model.chat_template={chat_template} cannot be read ({error}); give a jinja file"
            ) from None
    if not loaded.chat_template:
        raise ConfigError(
            f"model {folder} has no chat template; set model.chat_template to a jinja file, e.g. {TEMPLATE}"
        )
    return loaded


def window(folder: Path) -> int:
    """Most tokens (prompt and output together) that the model's positions cover."""
    config = _config(folder)
    size = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    if not isinstance(size, int):
        raise ConfigError(f"{folder}/config.json has no max_position_embeddings; give a decoder-only HF model")
    return size


def config_of(folder: Path) -> dict[str, Any]:
    """The model's `config.json`."""
    return _config(folder)


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end an output, ascending: the model's end-of-sequence ids and that of `<|im_end|>` where it exists."""
    ends: set[int] = set()
    for values in (_config(folder), _json(folder / "generation_config.json")):
        found = values.get("eos_token_id")
        ends |= set(found if isinstance(found, list) else [] if found is None else [found])
    added = _json(folder / "tokenizer.json").get("added_tokens", [])
    ends |= {token["id"] for token in added if token["content"] == END_OF_TURN}
    if not ends:
        raise ConfigError(f"model {folder} names no end-of-sequence token; set eos_token_id in its config.json")
    return tuple(sorted(ends))


def _built(name: str, cache: Path, progress: Progress) -> Path:
    _require()
    from filelock import FileLock

    from qwengyre.model.convert import smollm2
    from qwengyre.model.tiny import tiny, tiny_long

    folder = cache / BUILT[name]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            with FileLock(cache / f".{folder.name}.lock"):
                if not folder.is_dir():
                    builders = {TINY: tiny, LONG: tiny_long, DEFAULT: lambda scratch: smollm2(scratch, progress)}
                    _build(folder, builders[name])
                    progress(Phase(f"model {name}: ready in {folder}", over=True))
        _refresh_template(folder)
    except OSError as error:
        raise MachineError(
            f"model {name} cannot be kept in {cache} ({error.strerror or error}); "
            "set QWENGYRE_CACHE to a writable folder"
        ) from None
    return folder


def _build(folder: Path, fill: Callable[[Path], None]) -> None:
    """Under the folder's lock: anything that a killed builder left is nobody's."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with no_bars():
            fill(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refresh_template(folder: Path) -> None:
    """The shipped template stands in the folder, so that it is an ordinary HF folder and so are its checkpoints."""
    text, place = TEMPLATE.read_bytes(), folder / "chat_template.jinja"
    if place.is_file() and place.read_bytes() == text:
        return
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".template-", delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(place)


def _from_hub(name: str, progress: Progress) -> Path:
    _require()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    from qwengyre.model.hub import bar

    progress(Phase(f"model {name}: looking in the Hugging Face cache and hub", over=True))
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        with no_bars():
            told = bar(f"model {name}: downloading", progress)
            return Path(snapshot_download(name, allow_patterns=wanted, tqdm_class=told))
    except (RepositoryNotFoundError, HFValidationError):
        raise ConfigError(
            f"model.name={name}: no such folder here and no such model on the hub; check the name"
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise MachineError(
            f"model.name={name}: no such folder here, and the hub cannot be reached ({type(error).__name__}); "
            "download it where there is a network and give its folder"
        ) from None


def _require() -> None:
    """Looks, without importing: a command that only resolves a name needs no second of torch."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MachineError(f"{package} is not installed; pip install 'qwengyre[run]'")


def _merged(model: Any, folder: Path) -> "PreTrainedModel":
    if find_spec("peft") is None:
        raise MachineError(f"{folder} is an adapter, and peft is not installed; pip install 'qwengyre[lora]'")
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers in yesterday's words
        return PeftModel.from_pretrained(model, folder).merge_and_unload()


def _line(error: Exception) -> str:
    """What a library said, cut to one line."""
    return " ".join(str(error).split())[:160]


def _config(folder: Path) -> dict[str, Any]:
    folder = base_of(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no HF model folder: it has no config.json")
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); fetch the model again") from None
