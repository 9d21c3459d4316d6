"""Stands in for the build backend of llama.cpp's Python package, for tools/fetch-llama. Before pip keeps a source package,
it asks the package's backend for name and version. The true backend would be fetched without a hash, and run, although
nothing is built with it."""
import email
import pathlib


def prepare_metadata_for_build_wheel(directory, settings=None):
    """Called in the unpacked sources. Returns the name of the folder made in `directory`."""
    known = pathlib.Path("PKG-INFO").read_text(encoding="utf-8")
    fields = email.message_from_string(known)
    made = pathlib.Path(directory, f"{fields['Name'].replace('-', '_')}-{fields['Version']}.dist-info")
    made.mkdir()
    (made / "METADATA").write_text(known, encoding="utf-8")
    return made.name
